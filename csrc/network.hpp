// What the searches and the schedule simulation know of a topology and a demand: plain arrays.
#pragma once

#include <algorithm>
#include <vector>

#include "path.hpp"

namespace teccl {

// A direct way from one GPU to another: link indices in order. Copies of a chunk that start together share the first
// `trunk` links, up to the switch that multicasts it, if those are the same.
struct DirectPath {
  int src;
  int dst;
  std::vector<int> links;
  int trunk = 0;
};

struct Network {
  int ranks;
  std::vector<LinkFigures> links;
  std::vector<DirectPath> paths;
};

struct DemandedChunk {
  double bytes;
  bool reduce;
  std::vector<int> origin;
  std::vector<int> want;
  std::vector<int> holders{};  // GPUs that may hold it, ascending; empty: all
  double weight = 1;           // what it is worth to bring it nearer, against others on the same links

  bool may_be_at(int rank) const {
    return holders.empty() || std::binary_search(holders.begin(), holders.end(), rank);
  }
};

// When a transfer on a path occupies each link, relative to its start, and when it arrives.
struct PathTiming {
  std::vector<double> offset;
  std::vector<double> occupancy;
  double arrival;
};

inline PathTiming time_path(const Network& network, const DirectPath& path, double bytes) {
  std::vector<LinkFigures> figures;
  for (int link : path.links) figures.push_back(network.links[static_cast<std::size_t>(link)]);
  PathTiming timing{std::vector<double>(figures.size()), {}, 0};
  timing.arrival = cut_through(figures.data(), figures.size(), bytes, timing.offset.data());
  for (const auto& link : figures) timing.occupancy.push_back(occupancy_us(bytes, link));
  return timing;
}

// Whether transfers of one chunk on both paths, started together, are one transfer on link `place` of both.
inline bool share_trunk(const DirectPath& one, const DirectPath& other, std::size_t place) {
  return static_cast<int>(place) < one.trunk && one.trunk == other.trunk &&
         std::equal(one.links.begin(), one.links.begin() + one.trunk, other.links.begin());
}

// A chunk sent on a path; the schedule simulation decides when.
struct ChunkSend {
  int chunk;
  int path;
  double start_us;
  double arrival_us;
};

}  // namespace teccl
