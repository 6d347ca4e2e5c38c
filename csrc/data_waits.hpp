// What each send waits for: the sends that bring its data.
#pragma once

#include <vector>

#include "network.hpp"

namespace teccl {

struct DataWaits {
  std::vector<std::vector<std::size_t>> before;  // per send: the sends whose arrival it waits for
  bool supplied = true;                          // every send that is no origin's waits for one
};

// By the times the sends have now: a copy waits for the arrival that brings the chunk first, a reduction for all that
// have come when it starts. O(sends log sends).
DataWaits data_waits(const Network& network, const std::vector<DemandedChunk>& chunks,
                     const std::vector<ChunkSend>& sends);

// Times that differ by this are one.
inline double slack_us(double time_us) { return 1e-9 * (time_us > 1 ? time_us : 1.0); }

}  // namespace teccl
