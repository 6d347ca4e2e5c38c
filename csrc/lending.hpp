// Which messages may be sent from where they lie in a rank's buffers, without a copy into a slot.
#pragma once

#include "interpreter.hpp"

namespace teccl {

// The steps of `rank` whose message stays as it is once it is sent: every step of the rank that writes any of those
// chunks comes before, in its threadblock or by a dependency, so that whoever reads the memory later reads the same.
// None with injected faults (they exercise the slots) or an average (every output is divided at the end).
// O(chunks moved · writers of a chunk).
StepFlags lending_steps(const Setting& setting, int rank, const Memory& memory);

}  // namespace teccl
