#include "element.hpp"

#include <array>
#include <cstring>
#include <stdexcept>
#include <type_traits>

namespace teccl {
namespace {

template <class To, class From>
To bits_of(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To result;
  std::memcpy(&result, &value, sizeof result);
  return result;
}

// -- 16-bit floats: every case is computed and one selected, so that loops over them vectorise ------------------------

// A choice by masks: with ?: the compiler makes branches of it.
inline std::int32_t choose(bool first, std::int32_t a, std::int32_t b) {
  const std::int32_t mask = -static_cast<std::int32_t>(first);
  return (a & mask) | (b & ~mask);
}

inline float widen_half(std::uint16_t bits) {
  const auto magnitude = static_cast<std::int32_t>(bits & 0x7fff);
  const std::int32_t shifted = magnitude << 13;  // exponent and fraction in float's places
  const std::int32_t special = shifted + ((255 - 31) << 23);  // infinity, NaN
  const std::int32_t normal = shifted + ((127 - 15) << 23);
  // A subnormal has no leading one: the subtraction takes it away again and normalises.
  const auto subnormal = bits_of<std::int32_t>(bits_of<float>(shifted + (113 << 23)) - bits_of<float>(113 << 23));
  const std::int32_t wide = choose(magnitude >= 0x7c00, special, choose(magnitude >= 0x0400, normal, subnormal));
  return bits_of<float>(wide | static_cast<std::int32_t>(static_cast<std::uint32_t>(bits & 0x8000u) << 16));
}

inline std::uint16_t narrow_half(float value) {
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

inline float widen_bfloat16(std::uint16_t bits) { return bits_of<float>(static_cast<std::uint32_t>(bits) << 16); }

inline std::uint16_t narrow_bfloat16(float value) {
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
  static Value load(Memory m) { return m; }
  static Memory store(Value v) { return v; }
};

struct Half {
  using Memory = std::uint16_t;
  using Value = float;
  static Value load(Memory m) { return widen_half(m); }
  static Memory store(Value v) { return narrow_half(v); }
};

struct Bfloat16 {
  using Memory = std::uint16_t;
  using Value = float;
  static Value load(Memory m) { return widen_bfloat16(m); }
  static Memory store(Value v) { return narrow_bfloat16(v); }
};

struct Sum {
  template <class V>
  static V of(V a, V b) {
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
  static V of(V a, V b) {
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
  static V of(V a, V b) { return a < b ? b : a; }
};

struct Minimum {
  template <class V>
  static V of(V a, V b) { return b < a ? b : a; }
};

template <class Element, class Operation>
void combine(std::byte* out_bytes, const std::byte* a_bytes, const std::byte* b_bytes, std::size_t count) {
  using Memory = typename Element::Memory;
  auto* out = reinterpret_cast<Memory*>(out_bytes);
  auto* a = reinterpret_cast<const Memory*>(a_bytes);
  auto* b = reinterpret_cast<const Memory*>(b_bytes);
#pragma GCC ivdep
  for (std::size_t i = 0; i < count; ++i)
    out[i] = Element::store(Operation::of(Element::load(a[i]), Element::load(b[i])));
}

template <class Element>
Combine combine_with(Reduction reduction) {
  switch (reduction) {
    case Reduction::sum:
    case Reduction::avg:  return combine<Element, Sum>;
    case Reduction::prod: return combine<Element, Product>;
    case Reduction::max:  return combine<Element, Maximum>;
    case Reduction::min:  return combine<Element, Minimum>;
  }
  return nullptr;
}

template <class Element>
void divide(std::byte* data_bytes, std::size_t count, int divisor) {
  auto* data = reinterpret_cast<typename Element::Memory*>(data_bytes);
  using Value = typename Element::Value;
  // Wider than any 32-bit divisor: an int8 sum over 200 ranks is divided by 200, not by 200 − 256.
  using Wide = std::conditional_t<std::is_integral_v<Value>,
                                  std::conditional_t<std::is_signed_v<Value>, std::int64_t, std::uint64_t>, Value>;
  for (std::size_t i = 0; i < count; ++i)
    data[i] = Element::store(static_cast<Value>(static_cast<Wide>(Element::load(data[i])) / static_cast<Wide>(divisor)));
}

constexpr std::array<const char*, 12> type_names{"int8", "uint8",    "int32", "uint32", "int64",  "uint64",
                                                 "half", "bfloat16", "float", "double", "f8e4m3", "f8e5m2"};
constexpr std::array<const char*, 5> reduction_names{"sum", "prod", "max", "min", "avg"};

template <class Enum, std::size_t n>
Enum named(const std::array<const char*, n>& names, const std::string& name, const char* what) {
  for (std::size_t i = 0; i < n; ++i)
    if (name == names[i]) return static_cast<Enum>(i);
  throw std::invalid_argument(std::string(what) + " '" + name + "' is unknown");
}

}  // namespace

ElementType element_type_named(const std::string& name) { return named<ElementType>(type_names, name, "type"); }
Reduction reduction_named(const std::string& name) { return named<Reduction>(reduction_names, name, "operation"); }

std::size_t element_bytes(ElementType type) {
  static constexpr std::array<std::size_t, 12> bytes{1, 1, 4, 4, 8, 8, 2, 2, 4, 8, 1, 1};
  return bytes[static_cast<std::size_t>(type)];
}

Combine combine_for(ElementType type, Reduction reduction) {
  switch (type) {
    case ElementType::int8:     return combine_with<Plain<std::int8_t>>(reduction);
    case ElementType::uint8:    return combine_with<Plain<std::uint8_t>>(reduction);
    case ElementType::int32:    return combine_with<Plain<std::int32_t>>(reduction);
    case ElementType::uint32:   return combine_with<Plain<std::uint32_t>>(reduction);
    case ElementType::int64:    return combine_with<Plain<std::int64_t>>(reduction);
    case ElementType::uint64:   return combine_with<Plain<std::uint64_t>>(reduction);
    case ElementType::half:     return combine_with<Half>(reduction);
    case ElementType::bfloat16: return combine_with<Bfloat16>(reduction);
    case ElementType::float32:  return combine_with<Plain<float>>(reduction);
    case ElementType::float64:  return combine_with<Plain<double>>(reduction);
    case ElementType::float8_e4m3:
    case ElementType::float8_e5m2: return nullptr;
  }
  return nullptr;
}

Scale scale_for(ElementType type, Reduction reduction) {
  if (reduction != Reduction::avg) return nullptr;
  switch (type) {
    case ElementType::int8:     return divide<Plain<std::int8_t>>;
    case ElementType::uint8:    return divide<Plain<std::uint8_t>>;
    case ElementType::int32:    return divide<Plain<std::int32_t>>;
    case ElementType::uint32:   return divide<Plain<std::uint32_t>>;
    case ElementType::int64:    return divide<Plain<std::int64_t>>;
    case ElementType::uint64:   return divide<Plain<std::uint64_t>>;
    case ElementType::half:     return divide<Half>;
    case ElementType::bfloat16: return divide<Bfloat16>;
    case ElementType::float32:  return divide<Plain<float>>;
    case ElementType::float64:  return divide<Plain<double>>;
    case ElementType::float8_e4m3:
    case ElementType::float8_e5m2: return nullptr;
  }
  return nullptr;
}

}  // namespace teccl
