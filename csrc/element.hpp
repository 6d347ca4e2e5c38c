// Arithmetic on buffer elements: what a reducing step does to a run of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace teccl {

enum class ElementType : std::int8_t {
  int8, uint8, int32, uint32, int64, uint64, half, bfloat16, float32, float64, float8_e4m3, float8_e5m2
};
enum class Reduction : std::int8_t { sum, prod, max, min, avg };

std::size_t element_bytes(ElementType type);

// out[i] = a[i] ∘ b[i] for `count` elements. `out` may be `a` or `b` itself; ranges that overlap otherwise give
// unspecified elements (as they would on a GPU). Integers wrap; half and bfloat16 are widened to float and rounded
// to nearest even once per call. avg combines as sum. Null for the 8-bit floats, which are for copies only.
using Combine = void (*)(std::byte* out, const std::byte* a, const std::byte* b, std::size_t count);
Combine combine_for(ElementType type, Reduction reduction);

// data[i] = data[i] / divisor for `count` elements: what makes avg of a sum. Integers are cut towards zero, as NCCL's
// SumPostDiv does; floats are divided in float (double in double) and rounded once. NCCL multiplies floats by 1/n
// before they are summed, which a program cannot say: the results differ in the last bits at most.
using Scale = void (*)(std::byte* data, std::size_t count, int divisor);
// Null for every other reduction.
Scale scale_for(ElementType type, Reduction reduction);

// Names as nccl-tests spells them ("half", "float", "sum", …). Throw std::invalid_argument.
ElementType element_type_named(const std::string& name);
Reduction reduction_named(const std::string& name);

}  // namespace teccl
