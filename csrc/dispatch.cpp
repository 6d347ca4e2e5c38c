#include "dispatch.hpp"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <queue>
#include <stdexcept>
#include <string>

namespace teccl {
namespace {

using Index = std::size_t;
constexpr double kSameTime = 1e-12;  // times that differ by this share are one instant, summed in another order

class Dispatch {
 public:
  Dispatch(const Network& network, const std::vector<DemandedChunk>& chunks, std::vector<ChunkSend>& sends,
           const std::vector<double>& priority)
      : network_(network), sends_(sends), free_from_(network.links.size(), 0), ready_(network.paths.size(), Ready{Later{priority}}),
        looked_at_(network.paths.size(), false), awaits_links_(network.paths.size(), false), later_{priority} {
    const auto ranks = static_cast<Index>(network.ranks);
    leaving_.resize(chunks.size() * ranks);
    held_.assign(chunks.size() * ranks, false);
    for (Index i = 0; i < sends.size(); ++i) {
      const double bytes = chunks.at(static_cast<Index>(sends[i].chunk)).bytes;
      auto& timing = known_[{sends[i].path, bytes}];
      if (timing.offset.empty()) timing = time_path(network, path(i), bytes);
      timings_.push_back(&timing);
      leaving_[slot(sends[i].chunk, path(i).src)].push_back(i);
    }
    for (Index c = 0; c < chunks.size(); ++c)
      for (int origin : chunks[c].origin) arrive(slot(static_cast<int>(c), origin));
  }

  void run() {
    double now = 0;
    start_what_can(now);
    while (!wakeups_.empty()) {
      const double instant = wakeups_.top().time * (1 + kSameTime);
      while (!wakeups_.empty() && wakeups_.top().time <= instant) {
        const Wakeup event = wakeups_.top();
        wakeups_.pop();
        now = event.time;
        if (event.arrival) {
          arrive(event.where);
        } else {
          awaits_links_[event.where] = false;
          look_at(event.where);
        }
      }
      start_what_can(now);
    }
    if (order_.size() < sends_.size()) refuse();
    std::vector<ChunkSend> ordered;
    for (Index i : order_) ordered.push_back(sends_[i]);
    sends_ = std::move(ordered);
  }

 private:
  struct Wakeup {  // a chunk arrives at a GPU (where: its slot), or the links of a path fall free (where: the path)
    double time;
    bool arrival;
    Index where;
    bool operator>(const Wakeup& other) const { return time > other.time; }
  };
  struct Later {  // whether one send comes after another
    const std::vector<double>& priority;
    bool operator()(Index a, Index b) const {
      return priority[a] != priority[b] ? priority[a] < priority[b] : a > b;
    }
  };
  using Ready = std::priority_queue<Index, std::vector<Index>, Later>;

  const DirectPath& path(Index send) const { return network_.paths.at(static_cast<Index>(sends_[send].path)); }
  Index slot(int chunk, int rank) const {
    return static_cast<Index>(chunk) * static_cast<Index>(network_.ranks) + static_cast<Index>(rank);
  }

  void look_at(Index p) {
    if (looked_at_[p]) return;
    looked_at_[p] = true;
    to_look_at_.push_back(p);
  }

  void arrive(Index where) {
    if (held_[where]) return;
    held_[where] = true;
    for (Index i : leaving_[where]) {
      const auto p = static_cast<Index>(sends_[i].path);
      ready_[p].push(i);
      look_at(p);
    }
  }

  double free_from(Index send) const {
    double from = 0;
    const auto& links = path(send).links;
    for (Index k = 0; k < links.size(); ++k)
      from = std::max(from, free_from_[static_cast<Index>(links[k])] - timings_[send]->offset[k]);
    return from;
  }

  void start_what_can(double now) {
    Ready best(later_);  // the first of every path that may have free links
    for (Index p : to_look_at_) {
      looked_at_[p] = false;
      if (!ready_[p].empty()) best.push(ready_[p].top());
    }
    to_look_at_.clear();
    while (!best.empty()) {
      const Index i = best.top();
      best.pop();
      const auto p = static_cast<Index>(sends_[i].path);
      const double from = free_from(i);
      if (from > now * (1 + kSameTime)) {
        if (!awaits_links_[p]) {
          awaits_links_[p] = true;
          wakeups_.push({from, false, p});
        }
        continue;
      }
      start(i, std::max(now, from));
      ready_[p].pop();
      if (!ready_[p].empty()) best.push(ready_[p].top());
    }
  }

  void start(Index i, double now) {
    const auto& links = path(i).links;
    for (Index k = 0; k < links.size(); ++k)
      free_from_[static_cast<Index>(links[k])] = now + timings_[i]->offset[k] + timings_[i]->occupancy[k];
    sends_[i].start_us = now;
    sends_[i].arrival_us = now + timings_[i]->arrival;
    wakeups_.push({sends_[i].arrival_us, true, slot(sends_[i].chunk, path(i).dst)});
    order_.push_back(i);
  }

  [[noreturn]] void refuse() const {
    std::vector<bool> started(sends_.size(), false);
    for (Index i : order_) started[i] = true;
    const auto i = static_cast<Index>(std::find(started.begin(), started.end(), false) - started.begin());
    throw std::invalid_argument("GPU " + std::to_string(path(i).src) + " sends chunk " +
                                std::to_string(sends_[i].chunk) + " that it never receives");
  }

  const Network& network_;
  std::vector<ChunkSend>& sends_;
  std::vector<double> free_from_;                  // per link
  std::vector<Ready> ready_;                       // per path: sends whose chunk is there
  std::vector<bool> looked_at_, awaits_links_;     // per path
  Later later_;
  std::vector<Index> to_look_at_;                  // paths on which something may start
  std::vector<std::vector<Index>> leaving_;        // chunk × GPU: the sends from there
  std::vector<bool> held_;                         // chunk × GPU
  std::map<std::pair<int, double>, PathTiming> known_;
  std::vector<const PathTiming*> timings_;         // per send
  std::priority_queue<Wakeup, std::vector<Wakeup>, std::greater<Wakeup>> wakeups_;
  std::vector<Index> order_;                       // sends as they started
};

}  // namespace

void dispatch(const Network& network, const std::vector<DemandedChunk>& chunks, std::vector<ChunkSend>& sends,
              const std::vector<double>& priority) {
  if (priority.size() != sends.size()) throw std::invalid_argument("every send needs a priority");
  Dispatch(network, chunks, sends, priority).run();
}

}  // namespace teccl
