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
  static Value load(Memory m) { return half_to_float(m); }
  static Memory store(Value v) { return float_to_half(v); }
};

struct Bfloat16 {
  using Memory = std::uint16_t;
  using Value = float;
  static Value load(Memory m) { return bfloat16_to_float(m); }
  static Memory store(Value v) { return float_to_bfloat16(v); }
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
    case Reduction::sum:  return combine<Element, Sum>;
    case Reduction::prod: return combine<Element, Product>;
    case Reduction::max:  return combine<Element, Maximum>;
    case Reduction::min:  return combine<Element, Minimum>;
  }
  return nullptr;
}

constexpr std::array<const char*, 10> type_names{"int8", "uint8", "int32", "uint32", "int64",
                                                 "uint64", "half", "bfloat16", "float", "double"};
constexpr std::array<const char*, 4> reduction_names{"sum", "prod", "max", "min"};

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
  static constexpr std::array<std::size_t, 10> bytes{1, 1, 4, 4, 8, 8, 2, 2, 4, 8};
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
  }
  return nullptr;
}

// -- 16-bit floats ----------------------------------------------------------------------------------------------

float half_to_float(std::uint16_t bits) {
  const std::uint32_t magnitude = bits & 0x7fffu;
  std::uint32_t wide = magnitude << 13;  // exponent and fraction in float's places
  if (magnitude >= 0x7c00u)
    wide += (255u - 31u) << 23;  // infinity, NaN
  else if (magnitude >= 0x0400u)
    wide += (127u - 15u) << 23;  // normal
  else  // subnormal: let the subtraction normalise it
    wide = bits_of<std::uint32_t>(bits_of<float>(wide + (113u << 23)) - bits_of<float>(113u << 23));
  return bits_of<float>(wide | static_cast<std::uint32_t>(bits & 0x8000u) << 16);
}

std::uint16_t float_to_half(float value) {
  const std::uint32_t all = bits_of<std::uint32_t>(value);
  const std::uint32_t sign = all & 0x80000000u;
  const std::uint32_t magnitude = all ^ sign;
  std::uint32_t half;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u;  // NaN
  } else if (magnitude >= 0x477ff000u) {
    half = 0x7c00u;  // 65520 and more round to infinity
  } else if (magnitude < (113u << 23)) {
    // Subnormal or zero: adding ½ aligns the fraction, and the addition itself rounds to nearest even.
    const float aligned = bits_of<float>(magnitude) + 0.5f;
    half = bits_of<std::uint32_t>(aligned) - bits_of<std::uint32_t>(0.5f);
  } else {
    const std::uint32_t odd = (magnitude >> 13) & 1u;
    half = (magnitude - ((127u - 15u) << 23) + 0xfffu + odd) >> 13;
  }
  return static_cast<std::uint16_t>(half | sign >> 16);
}

float bfloat16_to_float(std::uint16_t bits) { return bits_of<float>(static_cast<std::uint32_t>(bits) << 16); }

std::uint16_t float_to_bfloat16(float value) {
  const std::uint32_t all = bits_of<std::uint32_t>(value);
  if ((all & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>(all >> 16 | 0x40u);  // a quiet NaN
  return static_cast<std::uint16_t>((all + 0x7fffu + ((all >> 16) & 1u)) >> 16);
}

}  // namespace teccl
