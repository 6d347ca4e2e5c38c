// How an element is held in memory, how it is computed with, and the reductions: for hosts and for GPUs, the same bits.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "both.hpp"

namespace teccl {

template <class To, class From>
TECCL_BOTH To bits_of(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To result;
  std::memcpy(&result, &value, sizeof result);
  return result;
}

// -- 16-bit floats: every case is computed and one selected, so that loops over them vectorise ------------------------

// A choice by masks: with ?: the compiler makes branches of it.
TECCL_BOTH inline std::int32_t choose(bool first, std::int32_t a, std::int32_t b) {
  const std::int32_t mask = -static_cast<std::int32_t>(first);
  return (a & mask) | (b & ~mask);
}

TECCL_BOTH inline float widen_half(std::uint16_t bits) {
  const auto magnitude = static_cast<std::int32_t>(bits & 0x7fff);
  const std::int32_t shifted = magnitude << 13;  // exponent and fraction in float's places
  const std::int32_t special = shifted + ((255 - 31) << 23);  // infinity, NaN
  const std::int32_t normal = shifted + ((127 - 15) << 23);
  // A subnormal has no leading one: the subtraction takes it away again and normalises.
  const auto subnormal = bits_of<std::int32_t>(bits_of<float>(shifted + (113 << 23)) - bits_of<float>(113 << 23));
  const std::int32_t wide = choose(magnitude >= 0x7c00, special, choose(magnitude >= 0x0400, normal, subnormal));
  return bits_of<float>(wide | static_cast<std::int32_t>(static_cast<std::uint32_t>(bits & 0x8000u) << 16));
}

TECCL_BOTH inline std::uint16_t narrow_half(float value) {
  const auto all = bits_of<std::uint32_t>(value);
  const auto magnitude = static_cast<std::int32_t>(all & 0x7fffffffu);
  // Adding ½ aligns a subnormal's fraction, and the addition itself rounds to nearest even.
  const std::int32_t subnormal =
      bits_of<std::int32_t>(bits_of<float>(magnitude) + 0.5f) - bits_of<std::int32_t>(0.5f);
  const std::int32_t normal = (magnitude - ((127 - 15) << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  const std::int32_t special = choose(magnitude > 0x7f800000, 0x7e00, 0x7c00);  // NaN, or so large that it is infinity
  const std::int32_t half =
      choose(magnitude >= 0x47800000, special, choose(magnitude < (113 << 23), subnormal, normal));
  return static_cast<std::uint16_t>(static_cast<std::uint32_t>(half) | (all & 0x80000000u) >> 16);
}

TECCL_BOTH inline float widen_bfloat16(std::uint16_t bits) { return bits_of<float>(static_cast<std::uint32_t>(bits) << 16); }

TECCL_BOTH inline std::uint16_t narrow_bfloat16(float value) {
  const auto all = bits_of<std::uint32_t>(value);
  const std::uint32_t quiet_nan = all >> 16 | 0x40u;
  const std::uint32_t rounded = (all + 0x7fffu + ((all >> 16) & 1u)) >> 16;
  return static_cast<std::uint16_t>(static_cast<std::int32_t>(all & 0x7fffffffu) > 0x7f800000 ? quiet_nan : rounded);
}

// -- how an element is held in memory and how it is computed with ---------------------------------------------

// Integers are computed unsigned, so that overflow wraps instead of being undefined.
template <class T>
struct Plain {
  using Memory = T;
  using Value = T;
  TECCL_BOTH static Value load(Memory m) { return m; }
  TECCL_BOTH static Memory store(Value v) { return v; }
};

struct Half {
  using Memory = std::uint16_t;
  using Value = float;
  TECCL_BOTH static Value load(Memory m) { return widen_half(m); }
  TECCL_BOTH static Memory store(Value v) { return narrow_half(v); }
};

struct Bfloat16 {
  using Memory = std::uint16_t;
  using Value = float;
  TECCL_BOTH static Value load(Memory m) { return widen_bfloat16(m); }
  TECCL_BOTH static Memory store(Value v) { return narrow_bfloat16(v); }
};

struct Sum {
  template <class V>
  TECCL_BOTH static V of(V a, V b) {
    if constexpr (std::is_integral_v<V>) {
      using U = std::make_unsigned_t<V>;
      return static_cast<V>(static_cast<U>(static_cast<U>(a) + static_cast<U>(b)));
    } else {
      return a + b;
    }
  }
};

struct Product {
  template <class V>
  TECCL_BOTH static V of(V a, V b) {
    if constexpr (std::is_integral_v<V>) {
      using U = std::make_unsigned_t<V>;
      return static_cast<V>(static_cast<U>(static_cast<U>(a) * static_cast<U>(b)));
    } else {
      return a * b;
    }
  }
};

struct Maximum {
  template <class V>
  TECCL_BOTH static V of(V a, V b) { return a < b ? b : a; }
};

struct Minimum {
  template <class V>
  TECCL_BOTH static V of(V a, V b) { return b < a ? b : a; }
};

// An average of a sum: integers are cut towards zero.
template <class Element>
TECCL_BOTH typename Element::Memory divided(typename Element::Memory element, int divisor) {
  using Value = typename Element::Value;
  // Wider than any 32-bit divisor: an int8 sum over 200 ranks is divided by 200, not by 200 − 256.
  using Wide = std::conditional_t<std::is_integral_v<Value>,
                                  std::conditional_t<std::is_signed_v<Value>, std::int64_t, std::uint64_t>, Value>;
  return Element::store(static_cast<Value>(static_cast<Wide>(Element::load(element)) / static_cast<Wide>(divisor)));
}

}  // namespace teccl
