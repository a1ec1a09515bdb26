// In place of libcu++'s own header: here the clock of the device stands still. The waits of cuda::barrier, cuda::pipeline
// and cuda::atomic ask for the time only to decide how long to sleep before they look again; without one they look again
// at once. A kernel that tells time can tell a benchmark from a check, and what waits for time to pass never ends.
#pragma once
#include <cuda/std/detail/__config>

_LIBCUDACXX_BEGIN_NAMESPACE_STD
namespace chrono {
inline __device__ system_clock::time_point system_clock::now() noexcept { return time_point(); }
inline __device__ time_t system_clock::to_time_t(const time_point& at) noexcept {
  return time_t(duration_cast<seconds>(at.time_since_epoch()).count());
}
inline __device__ system_clock::time_point system_clock::from_time_t(time_t at) noexcept {
  return time_point(seconds(at));
}
}  // namespace chrono
_LIBCUDACXX_END_NAMESPACE_STD
