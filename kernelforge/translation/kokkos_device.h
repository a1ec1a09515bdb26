// A device of Kokkos whose memory is apart from the host's, for builds of Kokkos that have the backend Serial alone. It
// takes the names of Kokkos's backend for CUDA, and is the default: views lie in its memory, which the host cannot use,
// by columns, and mirrors are copies. Serial's patterns execute its kernels; a flag says on which side the program is,
// and each access of a view asks for it.
//
// Kokkos's own configuration includes this file: kernelforge/translation/kokkos.py shadows the list of its backends.
#pragma once

#include <Kokkos_LogicalSpaces.hpp>

#include <cstdlib>
#include <cstring>
#include <set>
#include <string>
#include <type_traits>

#ifndef KOKKOS_CLASS_LAMBDA
#define KOKKOS_CLASS_LAMBDA [ =, *this ]
#endif

extern "C" {
void (*kernelforge_report)(const char *text) = nullptr; // set by the process that calls; ends the call
unsigned char kernelforge_poison = 0;                   // what memory holds before it is written
}

namespace kernelforge {

inline bool on_device = false;
inline std::set<const void *> allocations; // of views

[[noreturn]] inline void fail(const char *text) {
    if (kernelforge_report) kernelforge_report(text);
    std::abort();
}

class device_code {
public:
    device_code() : before(on_device) { on_device = true; }
    ~device_code() { on_device = before; }

private:
    bool before;
};

struct device_memory {
    static constexpr const char *get_name() { return "Cuda"; }
};
struct managed_memory {
    static constexpr const char *get_name() { return "CudaUVM"; }
};
struct pinned_memory {
    static constexpr const char *get_name() { return "CudaHostPinned"; }
};

inline int team_of_one(int threads) {
    if (threads > 1024) fail("a team of a TeamPolicy has more than 1,024 threads");
    return 1;
}

} // namespace kernelforge

namespace Kokkos {

template <class Execution, class Name>
using apart = Experimental::LogicalMemorySpace<HostSpace, Execution, Name,
                                               Experimental::LogicalSpaceSharesAccess::no_shared_access>;
using CudaSpace = apart<Cuda, kernelforge::device_memory>;
using CudaUVMSpace = apart<Cuda, kernelforge::managed_memory>;
using CudaHostPinnedSpace = apart<Serial, kernelforge::pinned_memory>;

class Cuda {
public:
    using execution_space = Cuda;
    using memory_space = CudaSpace;
    using size_type = unsigned;
    using device_type = Device<Cuda, CudaSpace>;
    using array_layout = LayoutLeft;
    using scratch_memory_space = Serial::scratch_memory_space;
    static int in_parallel() { return kernelforge::on_device; }
    static bool impl_is_initialized() { return Serial::impl_is_initialized(); }
    static void impl_static_fence() {}
    void fence() const {}
    static int concurrency() { return 1024; }
    static const char *name() { return "Cuda"; }
    static void print_configuration(std::ostream &, bool = false) {}
    std::uint32_t impl_instance_id() const noexcept { return 0; }
};

// Other backends that Kokkos may be built with: of this device, or of the host.
using HIP = Cuda;
using HIPSpace = CudaSpace;
using SharedSpace = CudaUVMSpace;
using SharedHostPinnedSpace = CudaHostPinnedSpace;
using OpenMP = Serial;
using Threads = Serial;
namespace Experimental {
using HIP = Cuda;
using HIPSpace = CudaSpace;
using SYCL = Cuda;
using SYCLDeviceUSMSpace = CudaSpace;
using OpenMPTarget = Cuda;
using OpenMPTargetSpace = CudaSpace;
} // namespace Experimental

// In place of initialize and finalize: the process that calls has initialised Kokkos, once, and goes on.
template <class... Arguments>
void kernelforge_initialize(Arguments &&...) {}
inline void kernelforge_finalize() {
    if (!kernelforge::allocations.empty()) kernelforge::fail("Kokkos::finalize is called while a view has its memory");
}

namespace Tools {
namespace Experimental {
template <>
struct DeviceTypeTraits<Cuda> {
    static constexpr DeviceType id = DeviceType::Cuda;
};
} // namespace Experimental
} // namespace Tools

namespace Impl {

// As those of Kokkos's backend for CUDA.
template <bool Assignable, bool Accessible>
struct access_of {
    enum : bool { assignable = Assignable, accessible = Accessible, deepcopy = true };
};
template <>
struct MemorySpaceAccess<HostSpace, CudaSpace> : access_of<false, false> {};
template <>
struct MemorySpaceAccess<HostSpace, CudaUVMSpace> : access_of<false, true> {};
template <>
struct MemorySpaceAccess<HostSpace, CudaHostPinnedSpace> : access_of<true, true> {};
template <>
struct MemorySpaceAccess<CudaSpace, HostSpace> : access_of<false, false> {};
template <>
struct MemorySpaceAccess<CudaSpace, CudaUVMSpace> : access_of<true, true> {};
template <>
struct MemorySpaceAccess<CudaSpace, CudaHostPinnedSpace> : access_of<false, true> {};
template <>
struct MemorySpaceAccess<CudaUVMSpace, HostSpace> : access_of<false, false> {};
template <>
struct MemorySpaceAccess<CudaUVMSpace, CudaSpace> : access_of<false, true> {};
template <>
struct MemorySpaceAccess<CudaUVMSpace, CudaHostPinnedSpace> : access_of<false, true> {};
template <>
struct MemorySpaceAccess<CudaHostPinnedSpace, HostSpace> : access_of<false, true> {};
template <>
struct MemorySpaceAccess<CudaHostPinnedSpace, CudaSpace> : access_of<false, false> {};
template <>
struct MemorySpaceAccess<CudaHostPinnedSpace, CudaUVMSpace> : access_of<false, true> {};
template <>
struct MemorySpaceAccess<CudaSpace, Serial::scratch_memory_space> {
    enum : bool { assignable = false, accessible = true, deepcopy = false };
};

// Those of a LogicalMemorySpace take no origin that is const.
struct copied_bytes {
    copied_bytes(void *to, const void *from, std::size_t bytes) { std::memmove(to, from, bytes); }
    template <class Space>
    copied_bytes(const Space &, void *to, const void *from, std::size_t bytes) : copied_bytes(to, from, bytes) {}
};
#define KERNELFORGE_COPIES(To, From)                                                                                   \
    template <class Space>                                                                                             \
    struct DeepCopy<To, From, Space> : copied_bytes {                                                                  \
        using copied_bytes::copied_bytes;                                                                              \
    };
#define KERNELFORGE_COPIES_TO(To)                                                                                      \
    KERNELFORGE_COPIES(To, CudaSpace)                                                                                  \
    KERNELFORGE_COPIES(To, CudaUVMSpace)                                                                               \
    KERNELFORGE_COPIES(To, CudaHostPinnedSpace)
KERNELFORGE_COPIES_TO(CudaSpace)
KERNELFORGE_COPIES_TO(CudaUVMSpace)
KERNELFORGE_COPIES_TO(CudaHostPinnedSpace)
KERNELFORGE_COPIES_TO(HostSpace)
KERNELFORGE_COPIES(CudaSpace, HostSpace)
KERNELFORGE_COPIES(CudaUVMSpace, HostSpace)
KERNELFORGE_COPIES(CudaHostPinnedSpace, HostSpace)
#undef KERNELFORGE_COPIES_TO
#undef KERNELFORGE_COPIES

template <>
struct verify_space<HostSpace, CudaSpace, false> {
    static void check() {
        if (!kernelforge::on_device) kernelforge::fail("the host uses an element of a view in the device's memory");
    }
};
template <>
struct verify_space<HostSpace, HostSpace, true> {
    static void check() {
        if (kernelforge::on_device) kernelforge::fail("a kernel uses an element of a view in the host's memory");
    }
};

// A team has one thread, whatever the policy requests.
template <class... Properties>
class TeamPolicyInternal<Cuda, Properties...> : public TeamPolicyInternal<Serial, Properties...> {
    using base = TeamPolicyInternal<Serial, Properties...>;
    static int one(const AUTO_t &) { return 1; }
    static int one(int threads) { return kernelforge::team_of_one(threads); }

public:
    using execution_policy = TeamPolicyInternal;
    using execution_space = Cuda;
    using traits = typename base::traits;

    template <class Threads>
    TeamPolicyInternal(const Cuda &, int league, const Threads &threads) : base(Serial(), league, one(threads)) {}
    template <class Threads, class Vector>
    TeamPolicyInternal(const Cuda &, int league, const Threads &threads, const Vector &)
        : base(Serial(), league, one(threads)) {}
    template <class Threads>
    TeamPolicyInternal(int league, const Threads &threads) : base(Serial(), league, one(threads)) {}
    template <class Threads, class Vector>
    TeamPolicyInternal(int league, const Threads &threads, const Vector &) : base(Serial(), league, one(threads)) {}
    template <class... Other>
    TeamPolicyInternal(const TeamPolicyInternal<Cuda, Other...> &from) : base(from) {}

    TeamPolicyInternal &set_chunk_size(typename traits::index_type size) {
        base::set_chunk_size(size);
        return *this;
    }
    template <class... Sizes>
    TeamPolicyInternal &set_scratch_size(const int &level, const Sizes &...sizes) {
        base::set_scratch_size(level, sizes...);
        return *this;
    }
};

// Patterns of the device: Serial's, on the other side.
template <class Pattern>
struct on_device : Pattern {
    using Pattern::Pattern;
    void execute() const {
        kernelforge::device_code here;
        Pattern::execute();
    }
    void execute() {
        kernelforge::device_code here;
        Pattern::execute();
    }
};

template <class T, class... Properties>
auto as_of_host(const View<T, Properties...> &view) {
    using layout = typename View<T, Properties...>::array_layout;
    return View<T, layout, HostSpace, MemoryUnmanaged>(view.data(), view.layout());
}

#define KERNELFORGE_PATTERNS(Policy)                                                                                   \
    template <class Functor, class... Properties>                                                                      \
    struct ParallelFor<Functor, Policy<Properties...>, Cuda>                                                           \
        : on_device<ParallelFor<Functor, Policy<Properties...>, Serial>> {                                             \
        using on_device<ParallelFor<Functor, Policy<Properties...>, Serial>>::on_device;                               \
    };                                                                                                                 \
    template <class Functor, class Reducer, class... Properties>                                                       \
    struct ParallelReduce<Functor, Policy<Properties...>, Reducer, Cuda>                                               \
        : on_device<ParallelReduce<Functor, Policy<Properties...>, Reducer, Serial>> {                                 \
        using base = on_device<ParallelReduce<Functor, Policy<Properties...>, Reducer, Serial>>;                       \
        using base::base;                                                                                              \
        template <class Own, class T, class... Of>                                                                     \
        ParallelReduce(const Functor &functor, const Own &policy, const View<T, Of...> &result)                        \
            : base(functor, policy, as_of_host(result)) {}                                                             \
    };
KERNELFORGE_PATTERNS(RangePolicy)
KERNELFORGE_PATTERNS(MDRangePolicy)
KERNELFORGE_PATTERNS(TeamPolicy)
#undef KERNELFORGE_PATTERNS

template <class Functor, class... Properties>
struct ParallelScan<Functor, RangePolicy<Properties...>, Cuda>
    : on_device<ParallelScan<Functor, RangePolicy<Properties...>, Serial>> {
    using on_device<ParallelScan<Functor, RangePolicy<Properties...>, Serial>>::on_device;
};
template <class Functor, class Total, class... Properties>
struct ParallelScanWithTotal<Functor, RangePolicy<Properties...>, Total, Cuda>
    : on_device<ParallelScanWithTotal<Functor, RangePolicy<Properties...>, Total, Serial>> {
    using on_device<ParallelScanWithTotal<Functor, RangePolicy<Properties...>, Total, Serial>>::on_device;
};

} // namespace Impl
} // namespace Kokkos
