// Reductions of two buffers of any of NCCL's types: one source for GPUs, where NVRTC compiles it at run time, and for
// the host, where the tests run it. It includes nothing, so that NVRTC needs no header.
#ifdef __CUDACC__
#define TECCL_DEVICE static __device__ __forceinline__
#define TECCL_ONCE _Pragma("unroll 1")
#else
#include <cstring>
#define TECCL_DEVICE static inline
#define TECCL_ONCE
#endif

namespace teccl_kernel {

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

TECCL_DEVICE float float_of(u32 bits) {
#ifdef __CUDACC__
  return __uint_as_float(bits);
#else
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
#endif
}

TECCL_DEVICE u32 bits_of(float value) {
#ifdef __CUDACC__
  return __float_as_uint(value);
#else
  u32 bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
#endif
}

// A float with `E` exponent bits (bias `B`) and `M` mantissa bits. Widening is exact; narrowing rounds to nearest even.
// `FINITE`: e4m3 has no infinity, and one NaN; both 8-bit types saturate, as NCCL's conversions do.
template <int E, int M, int B, bool FINITE, bool SATURATE>
struct Small {
  static const u32 sign = 1u << (E + M);
  static const u32 top = (1u << (E + M)) - 1;
  static const u32 infinity = FINITE ? top : ((1u << E) - 1) << M;
  static const u32 largest = infinity - 1;

  TECCL_DEVICE float widen(u32 bits) {
    const u32 negative = (bits & sign) ? 0x80000000u : 0u;
    const u32 magnitude = bits & top;
    if (FINITE ? magnitude == top : magnitude > infinity) return float_of(negative | 0x7fc00000u);
    if (!FINITE && magnitude == infinity) return float_of(negative | 0x7f800000u);
    if (magnitude >> M) return float_of(negative | ((magnitude << (23 - M)) + ((127u - B) << 23)));
    const float unit = float_of((127u - B + 1 - M) << 23);  // subnormal: whole multiples of the smallest
    const float value = static_cast<float>(magnitude) * unit;
    return negative ? -value : value;
  }

  TECCL_DEVICE u32 narrow(float value) {
    const u32 bits = bits_of(value);
    const u32 negative = (bits >> 31) ? sign : 0u;
    const u32 magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return negative | (FINITE ? top : infinity | (1u << (M - 1)));
    u32 rounded;
    if (magnitude >= ((127u - B + 1) << 23)) {  // normal here, too
      const u32 rebased = magnitude - ((127u - B) << 23);
      rounded = (rebased + ((1u << (22 - M)) - 1) + ((rebased >> (23 - M)) & 1)) >> (23 - M);
    } else {  // added to 2^23 units, the sum keeps whole units
      const float shift = float_of((150u - B + 1 - M) << 23);
      rounded = bits_of(float_of(magnitude) + shift) - bits_of(shift);
    }
    if (rounded >= (FINITE ? top : infinity)) rounded = SATURATE ? largest : infinity;
    return negative | rounded;
  }
};

typedef Small<5, 10, 15, false, false> HalfFormat;
struct Bfloat16Format {  // a float's upper half
  TECCL_DEVICE float widen(u32 bits) { return float_of(bits << 16); }
  TECCL_DEVICE u32 narrow(float value) {
    const u32 bits = bits_of(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (bits >> 16) | 0x40u;
    return (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;
  }
};
typedef Small<4, 3, 7, true, true> E4m3Format;
typedef Small<5, 2, 15, false, true> E5m2Format;

// How a type is stored, and in what it is computed.
template <typename T>
struct Plain {
  typedef T Stored;
  typedef T Computed;
  TECCL_DEVICE T load(T value) { return value; }
  TECCL_DEVICE T store(T value) { return value; }
};
template <typename BITS, typename FORMAT>
struct Narrow {
  typedef BITS Stored;
  typedef float Computed;
  TECCL_DEVICE float load(BITS bits) { return FORMAT::widen(bits); }
  TECCL_DEVICE BITS store(float value) { return static_cast<BITS>(FORMAT::narrow(value)); }
};
#ifdef __CUDACC__
struct Half {  // the hardware converts it
  typedef u16 Stored;
  typedef float Computed;
  TECCL_DEVICE float load(u16 bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
  }
  TECCL_DEVICE u16 store(float value) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
  }
};
#else
typedef Narrow<u16, HalfFormat> Half;
#endif

// Integers wrap: they are combined without signs where the sign does not matter.
template <typename T>
struct Wrapping {
  typedef T Type;
};
template <>
struct Wrapping<signed char> {
  typedef u32 Type;
};
template <>
struct Wrapping<u8> {
  typedef u32 Type;
};
template <>
struct Wrapping<int> {
  typedef u32 Type;
};
template <>
struct Wrapping<long long> {
  typedef u64 Type;
};

// NCCL's numbers: 0 sum, 1 product, 2 maximum, 3 minimum (of a number and a NaN, the number); an average is a sum,
// scaled before or after. The same for all threads, so that asking for each element costs little beside its memory; a
// kernel for each would take NVRTC many times as long.
template <typename T>
TECCL_DEVICE T combined(int op, T a, T b) {
  typedef typename Wrapping<T>::Type W;
  switch (op) {
    case 1:
      return static_cast<T>(static_cast<W>(a) * static_cast<W>(b));
    case 2:
      return a != a ? b : (b > a ? b : a);
    case 3:
      return a != a ? b : (b < a ? b : a);
    default:
      return static_cast<T>(static_cast<W>(a) + static_cast<W>(b));
  }
}

// 16 bytes at once where everything is aligned to them.
template <typename T>
struct alignas(16) Pack {
  T value[16 / sizeof(T)];
};

template <typename TYPE>
TECCL_DEVICE void combine(int op, void* out, const void* a, const void* b, u64 count, u64 thread, u64 threads) {
  typedef typename TYPE::Stored S;
  const u64 width = 16 / sizeof(S);
  S* to = static_cast<S*>(out);
  const S* one = static_cast<const S*>(a);
  const S* other = static_cast<const S*>(b);
  u64 begin = 0;
  if (((reinterpret_cast<u64>(out) | reinterpret_cast<u64>(a) | reinterpret_cast<u64>(b)) & 15) == 0) {
    typedef Pack<S> P;
    const u64 packs = count / width;
    TECCL_ONCE for (u64 i = thread; i < packs; i += threads) {
      const P x = static_cast<const P*>(a)[i];
      const P y = static_cast<const P*>(b)[i];
      P z;
      for (u64 k = 0; k < width; ++k)
        z.value[k] = TYPE::store(combined(op, TYPE::load(x.value[k]), TYPE::load(y.value[k])));
      static_cast<P*>(out)[i] = z;
    }
    begin = packs * width;
  }
  TECCL_ONCE for (u64 i = begin + thread; i < count; i += threads) to[i] =
      TYPE::store(combined(op, TYPE::load(one[i]), TYPE::load(other[i])));
}

TECCL_DEVICE void combine_any(void* out, const void* a, const void* b, u64 count, int type, int op, u64 thread,
                              u64 threads) {
  switch (type) {  // NCCL's numbers
    case 0:
      return combine<Plain<signed char> >(op, out, a, b, count, thread, threads);
    case 1:
      return combine<Plain<u8> >(op, out, a, b, count, thread, threads);
    case 2:
      return combine<Plain<int> >(op, out, a, b, count, thread, threads);
    case 3:
      return combine<Plain<u32> >(op, out, a, b, count, thread, threads);
    case 4:
      return combine<Plain<long long> >(op, out, a, b, count, thread, threads);
    case 5:
      return combine<Plain<u64> >(op, out, a, b, count, thread, threads);
    case 6:
      return combine<Half>(op, out, a, b, count, thread, threads);
    case 7:
      return combine<Plain<float> >(op, out, a, b, count, thread, threads);
    case 8:
      return combine<Plain<double> >(op, out, a, b, count, thread, threads);
    case 9:
      return combine<Narrow<u16, Bfloat16Format> >(op, out, a, b, count, thread, threads);
    case 10:
      return combine<Narrow<u8, E4m3Format> >(op, out, a, b, count, thread, threads);
    case 11:
      return combine<Narrow<u8, E5m2Format> >(op, out, a, b, count, thread, threads);
  }
}

// An average over n ranks, as NCCL makes it: floats are multiplied by 1/n, rounded to their type, before they are
// summed; integers are divided after it.
template <typename TYPE>
TECCL_DEVICE void multiply(void* out, const void* in, u64 count, int n, u64 thread, u64 threads) {
  typedef typename TYPE::Computed C;
  const C factor = TYPE::load(TYPE::store(static_cast<C>(1) / static_cast<C>(n)));
  TECCL_ONCE for (u64 i = thread; i < count; i += threads) static_cast<typename TYPE::Stored*>(out)[i] =
      TYPE::store(TYPE::load(static_cast<const typename TYPE::Stored*>(in)[i]) * factor);
}

template <typename T>
TECCL_DEVICE void divide(void* out, const void* in, u64 count, int n, u64 thread, u64 threads) {
  TECCL_ONCE for (u64 i = thread; i < count; i += threads) static_cast<T*>(out)[i] =
      static_cast<T>(static_cast<const T*>(in)[i] / static_cast<T>(n));
}

TECCL_DEVICE void scale_any(void* out, const void* in, u64 count, int type, int n, u64 thread, u64 threads) {
  switch (type) {
    case 0:
      return divide<signed char>(out, in, count, n, thread, threads);
    case 1:
      return divide<u8>(out, in, count, n, thread, threads);
    case 2:
      return divide<int>(out, in, count, n, thread, threads);
    case 3:
      return divide<u32>(out, in, count, n, thread, threads);
    case 4:
      return divide<long long>(out, in, count, n, thread, threads);
    case 5:
      return divide<u64>(out, in, count, n, thread, threads);
    case 6:
      return multiply<Half>(out, in, count, n, thread, threads);
    case 7:
      return multiply<Plain<float> >(out, in, count, n, thread, threads);
    case 8:
      return multiply<Plain<double> >(out, in, count, n, thread, threads);
    case 9:
      return multiply<Narrow<u16, Bfloat16Format> >(out, in, count, n, thread, threads);
    case 10:
      return multiply<Narrow<u8, E4m3Format> >(out, in, count, n, thread, threads);
    case 11:
      return multiply<Narrow<u8, E5m2Format> >(out, in, count, n, thread, threads);
  }
}

}  // namespace teccl_kernel

#ifdef __CUDACC__
extern "C" __global__ void teccl_combine(void* out, const void* a, const void* b, unsigned long long count, int type,
                                         int op) {
  teccl_kernel::combine_any(out, a, b, count, type, op, blockIdx.x * blockDim.x + threadIdx.x, gridDim.x * blockDim.x);
}
extern "C" __global__ void teccl_scale(void* out, const void* in, unsigned long long count, int type, int n) {
  teccl_kernel::scale_any(out, in, count, type, n, blockIdx.x * blockDim.x + threadIdx.x, gridDim.x * blockDim.x);
}
#endif
