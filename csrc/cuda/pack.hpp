// Packs: a few 8-byte words that a thread moves and combines at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "../element.hpp"
#include "../element_types.hpp"
#include "hardware.hpp"

namespace teccl::device {

template <int n>
struct alignas(8 * n) Pack {
  std::uint64_t word[n];
};

template <class Element, class Operation, int n>
TECCL_DEVICE Pack<n> combined_as(const Pack<n>& a, const Pack<n>& b) {
  using Memory = typename Element::Memory;
  constexpr int count = static_cast<int>(sizeof(Pack<n>) / sizeof(Memory));
  Memory x[count], y[count];
  std::memcpy(x, &a, sizeof a);
  std::memcpy(y, &b, sizeof b);
#ifdef __CUDACC__
#pragma unroll
#endif
  for (int i = 0; i < count; ++i) x[i] = Element::store(Operation::of(Element::load(x[i]), Element::load(y[i])));
  Pack<n> result;
  std::memcpy(&result, x, sizeof result);
  return result;
}

template <class Element, int n>
TECCL_DEVICE Pack<n> combined_as(const Pack<n>& a, const Pack<n>& b, Reduction reduction) {
  switch (reduction) {
    case Reduction::prod: return combined_as<Element, Product>(a, b);
    case Reduction::max:  return combined_as<Element, Maximum>(a, b);
    case Reduction::min:  return combined_as<Element, Minimum>(a, b);
    default:              return combined_as<Element, Sum>(a, b);
  }
}

// a ∘ b, element by element. Every thread of a kernel takes the same branches; a call, so that their code is there once
// and costs copies no registers.
template <int n>
TECCL_DEVICE_CALL Pack<n> combined(Pack<n> a, Pack<n> b, ElementType type, Reduction reduction) {
  switch (type) {
    case ElementType::int8:     return combined_as<Plain<std::int8_t>>(a, b, reduction);
    case ElementType::uint8:    return combined_as<Plain<std::uint8_t>>(a, b, reduction);
    case ElementType::int32:    return combined_as<Plain<std::int32_t>>(a, b, reduction);
    case ElementType::uint32:   return combined_as<Plain<std::uint32_t>>(a, b, reduction);
    case ElementType::int64:    return combined_as<Plain<std::int64_t>>(a, b, reduction);
    case ElementType::uint64:   return combined_as<Plain<std::uint64_t>>(a, b, reduction);
    case ElementType::half:     return combined_as<Half>(a, b, reduction);
    case ElementType::bfloat16: return combined_as<Bfloat16>(a, b, reduction);
    case ElementType::float32:  return combined_as<Plain<float>>(a, b, reduction);
    case ElementType::float64:  return combined_as<Plain<double>>(a, b, reduction);
    default:                    return a;  // 8-bit floats are never combined
  }
}

template <class Element>
TECCL_DEVICE void divide_all(std::byte* data, std::int64_t count, int divisor, const Group& group) {
  auto* elements = reinterpret_cast<typename Element::Memory*>(data);
  for (std::int64_t i = group.rank(); i < count; i += group.size()) elements[i] = divided<Element>(elements[i], divisor);
}

TECCL_DEVICE_CALL void divide_all(std::byte* data, std::int64_t count, int divisor, ElementType type, const Group& group) {
  switch (type) {
    case ElementType::int8:     return divide_all<Plain<std::int8_t>>(data, count, divisor, group);
    case ElementType::uint8:    return divide_all<Plain<std::uint8_t>>(data, count, divisor, group);
    case ElementType::int32:    return divide_all<Plain<std::int32_t>>(data, count, divisor, group);
    case ElementType::uint32:   return divide_all<Plain<std::uint32_t>>(data, count, divisor, group);
    case ElementType::int64:    return divide_all<Plain<std::int64_t>>(data, count, divisor, group);
    case ElementType::uint64:   return divide_all<Plain<std::uint64_t>>(data, count, divisor, group);
    case ElementType::half:     return divide_all<Half>(data, count, divisor, group);
    case ElementType::bfloat16: return divide_all<Bfloat16>(data, count, divisor, group);
    case ElementType::float32:  return divide_all<Plain<float>>(data, count, divisor, group);
    case ElementType::float64:  return divide_all<Plain<double>>(data, count, divisor, group);
    default: return;
  }
}

// Memory of a rank: begins at any element, ends anywhere.
template <int n>
TECCL_DEVICE bool whole_packs(const std::byte* begin) {
  return reinterpret_cast<std::uintptr_t>(begin) % sizeof(Pack<n>) == 0;
}

template <int n>
TECCL_DEVICE Pack<n> load_pack(const std::byte* from, std::uint64_t bytes, bool aligned) {
  Pack<n> pack{};
  if (aligned && bytes >= sizeof pack) return *reinterpret_cast<const Pack<n>*>(from);
  auto* to = reinterpret_cast<std::byte*>(&pack);
  for (std::uint64_t i = 0; i < sizeof pack && i < bytes; ++i) to[i] = from[i];
  return pack;
}

template <int n>
TECCL_DEVICE void store_pack(std::byte* to, const Pack<n>& pack, std::uint64_t bytes, bool aligned) {
  if (aligned && bytes >= sizeof pack) {
    *reinterpret_cast<Pack<n>*>(to) = pack;
    return;
  }
  auto* from = reinterpret_cast<const std::byte*>(&pack);
  for (std::uint64_t i = 0; i < sizeof pack && i < bytes; ++i) to[i] = from[i];
}

}  // namespace teccl::device
