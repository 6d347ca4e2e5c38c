// Race freedom by happens-before: conflicting accesses of a rank's threadblocks must be ordered.
//
// Order within a rank comes from the order of a threadblock's steps and from dependencies. Order that exists only
// because messages travel through other ranks is real but fragile: it is reported as a warning.
#pragma once

#include <cstdint>
#include <vector>

#include "check_collective.hpp"

namespace teccl {

// `order`: the steps as one execution ended them. Throws std::length_error when a rank is too large to judge.
// `handovers` gets what a threadblock reads in the input ("handover-i") or in scratch ("handover-s") after another of
// its rank wrote it: some runtimes fence neither.
void check_races(const Wiring& wiring, const Shape& shape, int root, Mode mode,
                 const std::vector<std::int32_t>& order, Findings& findings, Findings& handovers);

}  // namespace teccl
