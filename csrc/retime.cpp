#include "retime.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>

#include "data_waits.hpp"
#include "path_timings.hpp"

namespace teccl {
namespace {

using Index = std::size_t;

// A send starts no earlier than `delay_us` after the start of send `before`.
struct Wait {
  Index before;
  double delay_us;
};

// What each send waits for when data and links keep the order of the given starts.
class Waits {
 public:
  Waits(const Network& network, const std::vector<DemandedChunk>& chunks, const std::vector<ChunkSend>& sends)
      : network_(network), sends_(sends), timings_(network, chunks, sends), of_(sends.size()) {
    links();
    const DataWaits data = data_waits(network, chunks, arriving());
    supplied_ = data.supplied;
    for (Index i = 0; i < sends.size(); ++i)
      for (Index before : data.before[i]) of_[i].push_back({before, duration(before)});
  }

  const std::vector<Wait>& of(Index send) const { return of_[send]; }
  double arrival(Index send) const { return sends_[send].start_us + timings_.of(send).arrival; }
  double duration(Index send) const { return timings_.of(send).arrival; }
  bool supplied() const { return supplied_; }

 private:
  const DirectPath& path(Index send) const { return network_.paths[static_cast<Index>(sends_[send].path)]; }

  // On every link each send waits for the one that now crosses it before.
  void links() {
    std::vector<std::vector<std::pair<Index, Index>>> crossings(network_.links.size());  // link → (send, place in path)
    for (Index i = 0; i < sends_.size(); ++i)
      for (Index k = 0; k < path(i).links.size(); ++k)
        crossings[static_cast<Index>(path(i).links[k])].emplace_back(i, k);
    auto begin = [&](const std::pair<Index, Index>& crossing) {
      return sends_[crossing.first].start_us + timings_.of(crossing.first).offset[crossing.second];
    };
    for (auto& link : crossings) {
      std::stable_sort(link.begin(), link.end(), [&](auto& a, auto& b) { return begin(a) < begin(b); });
      for (Index n = 1; n < link.size(); ++n) {
        const auto [first, k] = link[n - 1];
        const auto [second, m] = link[n];
        if (together(first, second, k)) {
          of_[second].push_back({first, 0});
          of_[first].push_back({second, 0});
          continue;
        }
        of_[second].push_back(
            {first, timings_.of(first).offset[k] + timings_.of(first).occupancy[k] - timings_.of(second).offset[m]});
      }
    }
  }

  // Copies of a chunk that a switch multicasts, on link `place` of their paths: they are one transfer there and start as
  // one. (Of those that follow on the link each waits for one of them, which is as good as for all.)
  bool together(Index one, Index other, Index place) const {
    const double start = sends_[one].start_us;
    return sends_[one].chunk == sends_[other].chunk && std::abs(start - sends_[other].start_us) <= slack_us(start) &&
           share_trunk(path(one), path(other), place);
  }

  // The sends with the arrivals that their starts make.
  std::vector<ChunkSend> arriving() const {
    std::vector<ChunkSend> sends = sends_;
    for (Index i = 0; i < sends.size(); ++i) sends[i].arrival_us = arrival(i);
    return sends;
  }

  const Network& network_;
  const std::vector<ChunkSend>& sends_;
  const PathTimings timings_;
  std::vector<std::vector<Wait>> of_;
  bool supplied_ = true;
};

}  // namespace

void retime(const Network& network, const std::vector<DemandedChunk>& chunks, std::vector<ChunkSend>& sends) {
  const double never = std::numeric_limits<double>::infinity();
  const auto ranks = static_cast<Index>(network.ranks);
  std::unordered_map<Index, double> ready;  // (chunk, GPU) → when it is there; most GPUs never hold most chunks
  ready.reserve(sends.size() + chunks.size());
  auto at = [&](int chunk, int rank) -> double& {
    return ready.try_emplace(static_cast<Index>(chunk) * ranks + static_cast<Index>(rank), never).first->second;
  };
  for (Index c = 0; c < chunks.size(); ++c)
    for (int rank : chunks[c].origin) at(static_cast<int>(c), rank) = 0;

  std::vector<double> free_from(network.links.size(), 0);
  std::vector<Index> last_on(network.links.size(), sends.size());  // link → the send that took it last
  const PathTimings timings(network, chunks, sends);
  for (Index i = 0; i < sends.size(); ++i) {
    auto& send = sends[i];
    const PathTiming& timing = timings.of(i);
    const auto& path = network.paths[static_cast<Index>(send.path)];

    double start = at(send.chunk, path.src);
    const Index before = last_on[static_cast<Index>(path.links[0])];
    if (start == never)
      throw std::invalid_argument("GPU " + std::to_string(path.src) + " sends chunk " + std::to_string(send.chunk) +
                                  " that it never receives");
    double beyond = start;  // where the chunk need not wait for its trunk
    for (Index k = 0; k < path.links.size(); ++k) {
      const double from = free_from[static_cast<Index>(path.links[k])] - timing.offset[k];
      start = std::max(start, from);
      if (static_cast<int>(k) >= path.trunk) beyond = std::max(beyond, from);
    }
    // The switch also multicasts what has just been sent this way, if the rest of the path is free in time.
    if (before < i && sends[before].chunk == send.chunk && beyond <= sends[before].start_us &&
        share_trunk(network.paths[static_cast<Index>(sends[before].path)], path, 0))
      start = sends[before].start_us;
    last_on[static_cast<Index>(path.links[0])] = i;
    for (Index k = 0; k < path.links.size(); ++k)
      free_from[static_cast<Index>(path.links[k])] = start + timing.offset[k] + timing.occupancy[k];

    send.start_us = start;
    send.arrival_us = start + timing.arrival;
    double& there = at(send.chunk, path.dst);
    if (there == never)
      there = send.arrival_us;
    else if (chunks[static_cast<Index>(send.chunk)].reduce)
      there = std::max(there, send.arrival_us);
    else
      there = std::min(there, send.arrival_us);
  }
}

bool left_shift(const Network& network, const std::vector<DemandedChunk>& chunks, std::vector<ChunkSend>& sends) {
  const Waits waits(network, chunks, sends);
  if (!waits.supplied()) return false;
  std::vector<Index> order(sends.size());
  std::iota(order.begin(), order.end(), Index{0});
  std::stable_sort(order.begin(), order.end(), [&](Index a, Index b) { return sends[a].start_us < sends[b].start_us; });

  // The least solution of start ≥ start of the awaited + delay, from below (Bellman–Ford). Feasible starts solve the
  // same inequalities, so a start that must pass its given one shows that those were not.
  std::vector<double> start(sends.size(), 0);
  bool moved = true;
  for (Index pass = 0; moved && pass <= sends.size(); ++pass) {
    moved = false;
    for (Index i : order) {
      double earliest = start[i];
      for (const auto& wait : waits.of(i)) earliest = std::max(earliest, start[wait.before] + wait.delay_us);
      if (earliest > sends[i].start_us + slack_us(sends[i].start_us)) return false;
      if (earliest - start[i] <= 1e-3 * slack_us(earliest)) continue;  // rounding round a cycle of waits
      start[i] = earliest;
      moved = true;
    }
  }
  if (moved) return false;
  for (Index i = 0; i < sends.size(); ++i) {
    sends[i].start_us = start[i];
    sends[i].arrival_us = start[i] + waits.duration(i);
  }
  return true;
}

}  // namespace teccl
