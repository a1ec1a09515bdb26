// Included after every candidate: does each kernel take what the launch plan passes?
#pragma once
struct __half;
struct __half2;
struct __nv_bfloat16;
struct __nv_bfloat162;

namespace kernelforge_plan {

template <class T> struct bare { typedef T type; };
template <class T> struct bare<const T> { typedef T type; };
template <class T> struct bare<volatile T> { typedef T type; };
template <class T> struct bare<const volatile T> { typedef T type; };

template <class T, class... Choices> struct one_of { enum { value = false }; };
template <class T, class First, class... Rest> struct one_of<T, First, Rest...> {
  enum { value = one_of<T, Rest...>::value };
};
template <class T, class... Rest> struct one_of<T, T, Rest...> { enum { value = true }; };

// A pointer to any of Elements, or to void.
template <class T, class... Elements> struct points_to { enum { value = false }; };
template <class T, class... Elements> struct points_to<T*, Elements...> {
  enum { value = one_of<typename bare<T>::type, void, Elements...>::value };
};

struct tensor_float64 { template <class T> struct fits : points_to<T, double, double2> {}; };
struct tensor_float32 { template <class T> struct fits : points_to<T, float, float1, float2, float3, float4> {}; };
struct tensor_float16 { template <class T> struct fits : points_to<T, __half, __half2> {}; };
struct tensor_bfloat16 { template <class T> struct fits : points_to<T, __nv_bfloat16, __nv_bfloat162> {}; };
struct tensor_int64 {
  template <class T>
  struct fits : points_to<T, long long, unsigned long long, long, unsigned long, longlong2, ulonglong2, long2, ulong2> {};
};
struct tensor_int32 {
  template <class T>
  struct fits : points_to<T, int, unsigned, int1, int2, int3, int4, uint1, uint2, uint3, uint4> {};
};
struct tensor_int16 {
  template <class T>
  struct fits : points_to<T, short, unsigned short, short1, short2, short3, short4, ushort2, ushort4> {};
};
struct tensor_int8 {
  template <class T> struct fits : points_to<T, signed char, char, unsigned char, char1, char2, char3, char4> {};
};
struct tensor_uint8 {
  template <class T> struct fits : points_to<T, unsigned char, char, uchar1, uchar2, uchar3, uchar4> {};
};
struct tensor_bool { template <class T> struct fits : points_to<T, bool, unsigned char> {}; };
struct tensor_map { template <class T> struct fits : one_of<typename bare<T>::type, CUtensorMap> {}; };
struct i32 { template <class T> struct fits : one_of<typename bare<T>::type, int, unsigned> {}; };
struct i64 {
  template <class T>
  struct fits : one_of<typename bare<T>::type, long long, unsigned long long, long, unsigned long> {};
};
struct f32 { template <class T> struct fits : one_of<typename bare<T>::type, float> {}; };
struct f64 { template <class T> struct fits : one_of<typename bare<T>::type, double> {}; };
struct f16 { template <class T> struct fits : one_of<typename bare<T>::type, __half> {}; };
struct bf16 { template <class T> struct fits : one_of<typename bare<T>::type, __nv_bfloat16> {}; };

// One failed assertion per mistake; the numbers and types are read from the compiler's instantiation note.
template <int Launch, int Position, class Passed, class Taken> struct argument {
  static_assert(Passed::template fits<Taken>::value, "kernelforge argument");
};
template <int Launch, int Passed, int Taken> struct count {
  static_assert(Passed == Taken, "kernelforge count");
  enum { equal = Passed == Taken };
};

template <class... Types> struct list {};

template <int Launch, int Position, class Passed, class Taken> struct arguments {};
template <int Launch, int Position, class P, class... Ps, class T, class... Ts>
struct arguments<Launch, Position, list<P, Ps...>, list<T, Ts...>> : argument<Launch, Position, P, T>,
                                                                   arguments<Launch, Position + 1, list<Ps...>, list<Ts...>> {};

template <bool Equal, int Launch, class Passed, class Taken> struct matched {};
template <int Launch, class Passed, class Taken>
struct matched<true, Launch, Passed, Taken> : arguments<Launch, 1, Passed, Taken> {};

template <int Launch, class Kernel, class... Passed> struct launch;
template <int Launch, class... Taken, class... Passed>
struct launch<Launch, void (*)(Taken...), Passed...>
    : matched<count<Launch, sizeof...(Passed), sizeof...(Taken)>::equal, Launch, list<Passed...>, list<Taken...>> {
  enum { checked = true };
};

}  // namespace kernelforge_plan
