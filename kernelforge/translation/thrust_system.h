// A device system of Thrust whose memory the host cannot use, and whose algorithms cannot use the host's: algorithms run
// as regions of offload_runtime.c, on memory from there. Every algorithm that is given a policy of this system, or
// iterators of its memory, comes here; within a region Thrust's sequential system executes it. Iterators of both systems
// select this one, as with CUDA: only copies move data between them.
//
// kernelforge/translation/thrust.py writes the files by which Thrust's own headers find this one.
#pragma once

#include <thrust/detail/config.h>
#include <thrust/detail/execution_policy.h>
#include <thrust/detail/raw_pointer_cast.h>
#include <thrust/detail/seq.h>
#include <thrust/iterator/iterator_traits.h>
#include <thrust/system/cpp/detail/execution_policy.h>
#include <thrust/system/offload/detail/execution_policy.h>

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

extern "C" {
int omp_in_parallel(void);
int omp_is_initial_device(void);
void *omp_target_alloc(std::size_t bytes, int device);
void omp_target_free(void *address, int device);
int omp_target_memcpy(void *to, const void *from, std::size_t bytes, std::size_t to_offset, std::size_t from_offset,
                      int to_device, int from_device);
void GOMP_target_ext(int device, void (*region)(void *), std::size_t count, void **hosts, std::size_t *sizes,
                     unsigned short *kinds, unsigned flags, void **depend, void **arguments);
extern struct offload_stack {
    std::uintptr_t low, high;
} offload_stack;
}

namespace kernelforge {

inline constexpr int device = 0, host = 1; // as in offload_runtime.c
inline constexpr std::size_t page = 4096;
inline thread_local std::uintptr_t stack_end = 0; // of the frames that a region may not use; 0 for none

// Frames of the functions that the caller calls from now on are the host's alone. `page_of_caller` keeps them on pages
// of their own.
inline void host_frames_below(char *page_of_caller) { stack_end = reinterpret_cast<std::uintptr_t>(page_of_caller); }

struct nothing {};

// A lambda without __device__ is multiplied by `of_host`, and a class without it has a name of its own: see
// kernelforge/study/thrust_functions.py.
template <class Function>
struct function_of_host : Function {
    using kernelforge_of_host = void;
};
struct of_host_mark {
    template <class Function>
    friend function_of_host<Function> operator*(of_host_mark, Function function) {
        return {std::move(function)};
    }
};
inline constexpr of_host_mark of_host{};

template <class T, class = void>
struct calls_host : std::false_type {};
template <class T>
struct calls_host<T, std::void_t<typename T::kernelforge_of_host>> : std::true_type {};
template <class T>
struct holds_host_function : calls_host<T> {};
template <template <class...> class Template, class... Parts>
struct holds_host_function<Template<Parts...>>
    : std::disjunction<calls_host<Template<Parts...>>, holds_host_function<Parts>...> {};

// What a region executes, on pages of its own between the host's frames and those of the region.
template <class Body, class Result, class... Arguments>
struct alignas(page) launch {
    std::tuple<Arguments...> arguments;
    std::optional<Result> result;
    std::exception_ptr failure;
    inline static thread_local launch *current = nullptr;

    static void run(void *) {
        launch &own = *current;
        try {
            std::apply(
                [&own](auto &...arguments) {
                    if constexpr (std::is_same_v<Result, nothing>) Body::run(arguments...);
                    else own.result.emplace(Body::run(arguments...));
                },
                own.arguments);
        } catch (...) {
            own.failure = std::current_exception();
        }
    }

    static void run_without_host_frames(void *unused) {
        const std::uintptr_t low = reinterpret_cast<std::uintptr_t>(current + 1);
        const bool close = low < stack_end;
        if (close) {
            offload_stack = {low, stack_end};
            mprotect(reinterpret_cast<void *>(low), stack_end - low, PROT_NONE);
        }
        run(unused);
        if (close) mprotect(reinterpret_cast<void *>(low), stack_end - low, PROT_READ | PROT_WRITE);
        offload_stack = {0, 0};
    }
};

// Execute Body::run(arguments...) on the device. A region within a region is its part.
template <class Body, class... Arguments>
[[gnu::noinline]] auto region(Arguments... arguments) {
    static_assert(!std::disjunction_v<holds_host_function<Arguments>...>,
                  "an algorithm on the device calls a function object that lacks __device__");
    using Returned = decltype(Body::run(arguments...));
    using Result = std::conditional_t<std::is_void_v<Returned>, nothing, std::decay_t<Returned>>;
    if (!omp_is_initial_device()) return static_cast<std::decay_t<Returned>>(Body::run(arguments...));
    using Launch = launch<Body, Result, Arguments...>;
    Launch own{{std::move(arguments)...}, std::nullopt, nullptr};
    Launch *before = std::exchange(Launch::current, &own);
    GOMP_target_ext(device, Launch::run_without_host_frames, 0, nullptr, nullptr, nullptr, 0, nullptr, nullptr);
    Launch::current = before;
    if (own.failure) std::rethrow_exception(own.failure);
    if constexpr (!std::is_void_v<Returned>) return static_cast<std::decay_t<Returned>>(std::move(*own.result));
}

// Memory of the device for `count` values.
template <class T>
class device_buffer {
public:
    explicit device_buffer(std::size_t count)
        : start(static_cast<T *>(omp_target_alloc(count ? count * sizeof(T) : 1, device))) {}
    device_buffer(const device_buffer &) = delete;
    ~device_buffer() { omp_target_free(start, device); }
    T *const start;
};

template <class T>
void copy_to_device(T *to, const T *from, std::size_t count) {
    omp_target_memcpy(to, from, count * sizeof(T), 0, 0, device, host);
}

template <class T>
void copy_to_host(T *to, const T *from, std::size_t count) {
    omp_target_memcpy(to, from, count * sizeof(T), 0, 0, host, device);
}

struct copied { // from an iterator to another, both of one side
    template <class From, class To>
    static To run(From from, std::size_t count, To to) {
        for (; count; --count, ++from, ++to) *to = *from;
        return to;
    }
};

struct stored {
    template <class T>
    static void run(T *to, const T *from) {
        *to = *from;
    }
};

struct swapped {
    template <class T>
    static void run(T *first, T *second) {
        std::swap(*first, *second);
    }
};

} // namespace kernelforge

THRUST_NAMESPACE_BEGIN
namespace system {
namespace offload {
namespace detail {

// Where data are, and where they go.
template <class First, class Second>
struct cross_system : execution_policy<cross_system<First, Second>> {};

template <class First, class Second>
cross_system<First, Second> select_system(const execution_policy<First> &, const thrust::cpp::execution_policy<Second> &) {
    return {};
}
template <class First, class Second>
cross_system<First, Second> select_system(const thrust::cpp::execution_policy<First> &, const execution_policy<Second> &) {
    return {};
}

template <class Policy>
void *malloc(execution_policy<Policy> &, std::size_t bytes) {
    return omp_target_alloc(bytes ? bytes : 1, kernelforge::device);
}
template <class Policy, class Pointer>
void free(execution_policy<Policy> &, Pointer pointer) {
    omp_target_free(thrust::raw_pointer_cast(pointer), kernelforge::device);
}

// ---- single values: what a reference to the device's memory does ----------------------------------------------------

template <class Policy, class Pointer>
thrust::detail::it_value_t<Pointer> get_value(execution_policy<Policy> &, Pointer from) {
    using Value = std::remove_cv_t<thrust::detail::it_value_t<Pointer>>;
    const Value *address = thrust::raw_pointer_cast(from);
    if (!omp_is_initial_device()) return *address;
    Value value;
    kernelforge::copy_to_host(&value, address, 1);
    return value;
}

template <class Policy, class To, class From>
void assign_value(execution_policy<Policy> &, To to, From from) {
    using Value = std::remove_cv_t<thrust::detail::it_value_t<From>>;
    kernelforge::region<kernelforge::stored>(thrust::raw_pointer_cast(to),
                                             static_cast<const Value *>(thrust::raw_pointer_cast(from)));
}

// To is of the first system, From of the second.
template <class First, class Second, class To, class From>
void assign_value(cross_system<First, Second> &, To to, From from) {
    using Value = std::remove_cv_t<thrust::detail::it_value_t<To>>;
    const Value value = [&] {
        if constexpr (std::is_base_of_v<execution_policy<Second>, Second>) {
            Second second;
            return static_cast<Value>(get_value(second, from));
        } else {
            return static_cast<Value>(*thrust::raw_pointer_cast(from));
        }
    }();
    Value *address = thrust::raw_pointer_cast(to);
    if (!std::is_base_of_v<execution_policy<First>, First> || !omp_is_initial_device()) *address = value;
    else kernelforge::copy_to_device(address, &value, 1);
}

template <class Policy, class First, class Second>
void iter_swap(execution_policy<Policy> &, First first, Second second) {
    kernelforge::region<kernelforge::swapped>(thrust::raw_pointer_cast(first), thrust::raw_pointer_cast(second));
}

// ---- copies between both memories -----------------------------------------------------------------------------------

template <class First, class Second, class From, class Size, class To>
To copy_n(cross_system<First, Second> &, From from, Size size, To to) {
    using Value = std::remove_cv_t<thrust::detail::it_value_t<From>>;
    const std::size_t count = size > 0 ? size : 0;
    std::unique_ptr<Value[]> values(new Value[count]);
    kernelforge::device_buffer<Value> buffer(count);
    if constexpr (std::is_base_of_v<execution_policy<First>, First>) {
        kernelforge::region<kernelforge::copied>(from, count, buffer.start);
        kernelforge::copy_to_host(values.get(), buffer.start, count);
        return kernelforge::copied::run(values.get(), count, to);
    } else {
        kernelforge::copied::run(from, count, values.get());
        kernelforge::copy_to_device(buffer.start, values.get(), count);
        return kernelforge::region<kernelforge::copied>(buffer.start, count, to);
    }
}

template <class First, class Second, class From, class To>
To copy(cross_system<First, Second> &systems, From first, From last, To to) {
    return copy_n(systems, first, last - first, to);
}

} // namespace detail

} // namespace offload
} // namespace system
THRUST_NAMESPACE_END

// An algorithm of this name, in any of its forms, is a region.
#define KERNELFORGE_ALGORITHM(name)                                                                                    \
    THRUST_NAMESPACE_BEGIN                                                                                             \
    namespace system {                                                                                                 \
    namespace offload {                                                                                                \
    namespace detail {                                                                                                 \
    struct name##_body {                                                                                               \
        template <class... Arguments>                                                                                  \
        static auto run(Arguments &...arguments) {                                                                     \
            return thrust::name(thrust::seq, arguments...);                                                            \
        }                                                                                                              \
    };                                                                                                                 \
    template <class Policy, class... Arguments>                                                                        \
    auto name(execution_policy<Policy> &, Arguments... arguments) {                                                    \
        return kernelforge::region<name##_body>(std::move(arguments)...);                                              \
    }                                                                                                                  \
    }                                                                                                                  \
    }                                                                                                                  \
    }                                                                                                                  \
    THRUST_NAMESPACE_END
