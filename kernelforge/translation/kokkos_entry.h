// Views of an entry's arrays, for a function of Kokkos that takes views.
#pragma once

#include <Kokkos_Core.hpp>

#include <exception>

namespace kernelforge {

// A view's elements at the places of an array by rows, with one dimension or with those of the array.
template <class View, class Use>
void for_elements(const View &view, Use use) {
    std::size_t at = 0;
    for (std::size_t i = 0; i < view.extent(0); i++) {
        if constexpr (View::rank == 1) {
            use(view(i), at++);
        } else {
            for (std::size_t j = 0; j < view.extent(1); j++) {
                if constexpr (View::rank == 2) use(view(i, j), at++);
                else
                    for (std::size_t k = 0; k < view.extent(2); k++) use(view(i, j, k), at++);
            }
        }
    }
}

// A view with a copy of an array by rows, which a parameter of the type View can be made of.
template <class View, class T, class... Extents>
auto view_of(const T *from, Extents... extents) {
    using own = typename View::array_layout;
    using layout = std::conditional_t<std::is_same_v<own, Kokkos::LayoutStride>, Kokkos::LayoutRight, own>;
    using made = Kokkos::View<typename View::non_const_data_type, layout, typename View::device_type>;
    const auto make = [&] {
        if constexpr (View::rank == 1) return made("argument", (std::size_t(extents) * ...));
        else return made("argument", std::size_t(extents)...);
    };
    made view = make();
    auto mirror = Kokkos::create_mirror_view(view);
    for_elements(mirror, [from](auto &element, std::size_t at) { element = from[at]; });
    Kokkos::deep_copy(view, mirror);
    return view;
}

// The other way, after the call.
template <class View, class T, class... Extents>
void copy_back(const View &view, T *to, Extents... extents) {
    if (view.size() != (std::size_t(extents) * ...)) fail("the result's view has another number of elements");
    auto mirror = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), view);
    for_elements(mirror, [to](const auto &element, std::size_t at) { to[at] = element; });
}

} // namespace kernelforge

// Called once, before any other function.
extern "C" void kernelforge_start() {
    using Header = Kokkos::Impl::SharedAllocationHeader; // in front of a view's elements
    Kokkos::Tools::Experimental::set_allocate_data_callback(
        [](Kokkos::Tools::SpaceHandle, const char *label, const void *memory, std::uint64_t bytes) {
            const bool of_kokkos = std::strncmp(label, "Kokkos::", 8) == 0 || std::strcmp(label, "[unlabeled]") == 0;
            if (of_kokkos) return; // such as room for sums
            kernelforge::allocations.insert(memory);
            char *elements = static_cast<char *>(const_cast<void *>(memory)) + sizeof(Header);
            std::memset(elements, kernelforge_poison, bytes);
        });
    Kokkos::Tools::Experimental::set_deallocate_data_callback(
        [](Kokkos::Tools::SpaceHandle, const char *, const void *memory, std::uint64_t) {
            kernelforge::allocations.erase(memory);
        });
    Kokkos::InitArguments arguments;
    arguments.num_threads = 1;
    arguments.disable_warnings = true;
    Kokkos::initialize(arguments);
}
