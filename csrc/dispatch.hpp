// List scheduling: sends whose paths are decided, started as links fall free.
#pragma once

#include <vector>

#include "network.hpp"

namespace teccl {

// Fills start and arrival of `sends`, in place, and puts them in the order of their starts. A send is ready when its
// chunk is at the GPU that it leaves; of those that are ready and whose links are free, the one with the highest
// `priority` starts, ties in the order given. Copies only. Throws std::invalid_argument when a chunk never comes to where
// it is to be sent from. O(sends · (log sends + paths that share a link)).
void dispatch(const Network& network, const std::vector<DemandedChunk>& chunks, std::vector<ChunkSend>& sends,
              const std::vector<double>& priority);

}  // namespace teccl
