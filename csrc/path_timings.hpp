// The path timing of every send; sends of one path and size share it.
#pragma once

#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "network.hpp"

namespace teccl {

class PathTimings {
 public:
  // Throws std::invalid_argument for a chunk that does not exist, std::out_of_range for such a path.
  PathTimings(const Network& network, const std::vector<DemandedChunk>& chunks, const std::vector<ChunkSend>& sends) {
    for (const auto& send : sends) {
      if (send.chunk < 0 || static_cast<std::size_t>(send.chunk) >= chunks.size())
        throw std::invalid_argument("there is no chunk " + std::to_string(send.chunk));
      const auto& path = network.paths.at(static_cast<std::size_t>(send.path));
      const double bytes = chunks[static_cast<std::size_t>(send.chunk)].bytes;
      auto found = known_.find({send.path, bytes});
      if (found == known_.end())
        found = known_.emplace(std::make_pair(send.path, bytes), time_path(network, path, bytes)).first;
      of_.push_back(&found->second);
    }
  }
  PathTimings(const PathTimings&) = delete;
  PathTimings& operator=(const PathTimings&) = delete;

  const PathTiming& of(std::size_t send) const { return *of_[send]; }

 private:
  std::map<std::pair<int, double>, PathTiming> known_;
  std::vector<const PathTiming*> of_;
};

}  // namespace teccl
