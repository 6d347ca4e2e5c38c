#include "element.hpp"

#include <array>
#include <stdexcept>

#include "element_types.hpp"

namespace teccl {
namespace {

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
  for (std::size_t i = 0; i < count; ++i) data[i] = divided<Element>(data[i], divisor);
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
