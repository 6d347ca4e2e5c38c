#include "dispatch.hpp"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <queue>
#include <random>
#include <stdexcept>
#include <string>

#include "data_waits.hpp"
#include "path_timings.hpp"

namespace teccl {
namespace {

using Index = std::size_t;
constexpr double kSameTime = 1e-12;  // times that differ by this share are one instant, summed in another order

// What sends wait for: events, each of which happens once.
struct Events {
  std::vector<std::vector<Index>> allow;  // per event: the sends that wait for it
  std::vector<Index> arrival;             // per send: the event that its arrival is
  std::vector<Index> awaited;             // per send: how many events it waits for
  std::vector<Index> at_first;            // what has happened to begin with
};

// A copy waits for its chunk to be at the GPU that it leaves, whoever brings it.
Events first_arrivals(const Network& network, const std::vector<DemandedChunk>& chunks,
                      const std::vector<ChunkSend>& sends) {
  auto slot = [&](int chunk, int rank) {
    return static_cast<Index>(chunk) * static_cast<Index>(network.ranks) + static_cast<Index>(rank);
  };
  Events events{std::vector<std::vector<Index>>(chunks.size() * static_cast<Index>(network.ranks)), {}, {}, {}};
  for (Index i = 0; i < sends.size(); ++i) {
    const auto& path = network.paths.at(static_cast<Index>(sends[i].path));
    events.allow.at(slot(sends[i].chunk, path.src)).push_back(i);
    events.arrival.push_back(slot(sends[i].chunk, path.dst));
  }
  events.awaited.assign(sends.size(), 1);
  for (Index c = 0; c < chunks.size(); ++c)
    for (int origin : chunks[c].origin) events.at_first.push_back(slot(static_cast<int>(c), origin));
  return events;
}

// Sends wait for the arrivals that their times say; the last event is the beginning.
Events told_by_times(const Network& network, const std::vector<DemandedChunk>& chunks,
                     const std::vector<ChunkSend>& sends) {
  const auto before = data_waits(network, chunks, sends).before;
  Events events{std::vector<std::vector<Index>>(sends.size() + 1), {}, {}, {sends.size()}};
  for (Index i = 0; i < sends.size(); ++i) {
    events.arrival.push_back(i);
    events.awaited.push_back(std::max<Index>(1, before[i].size()));
    for (Index b : before[i]) events.allow[b].push_back(i);
    if (before[i].empty()) events.allow.back().push_back(i);
  }
  return events;
}

class Dispatch {
 public:
  Dispatch(const Network& network, const std::vector<DemandedChunk>& chunks, std::vector<ChunkSend>& sends,
           const std::vector<double>& priority, Events events, double load_weight = 0)
      : network_(network), sends_(sends), free_from_(network.links.size(), 0), ready_(network.paths.size(), Ready{Later{priority}}),
        looked_at_(network.paths.size(), false), awaits_links_(network.paths.size(), false), later_{priority},
        events_(std::move(events)), load_weight_(load_weight), to_carry_(network.links.size(), 0) {
    happened_.assign(events_.allow.size(), false);
    for (Index i = 0; i < sends.size(); ++i) {
      const double bytes = chunks.at(static_cast<Index>(sends[i].chunk)).bytes;
      auto& timing = known_[{sends[i].path, bytes}];
      if (timing.offset.empty()) timing = time_path(network, path(i), bytes);
      timings_.push_back(&timing);
      carry(i, 1);
    }
    for (Index event : events_.at_first) happen(event);
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
          happen(event.where);
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
  struct Wakeup {  // a send arrives (where: the event), or the links of a path fall free (where: the path)
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
  struct Candidate {
    double urgency;
    Index send;
    bool operator<(const Candidate& other) const {
      return urgency != other.urgency ? urgency < other.urgency : send > other.send;
    }
  };
  using Ready = std::priority_queue<Index, std::vector<Index>, Later>;

  const DirectPath& path(Index send) const { return network_.paths.at(static_cast<Index>(sends_[send].path)); }

  void look_at(Index p) {
    if (looked_at_[p]) return;
    looked_at_[p] = true;
    to_look_at_.push_back(p);
  }

  void happen(Index event) {
    if (happened_[event]) return;
    happened_[event] = true;
    for (Index i : events_.allow[event]) {
      if (--events_.awaited[i] > 0) continue;
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
    std::priority_queue<Candidate> best;  // the first of every path that may have free links
    for (Index p : to_look_at_) {
      looked_at_[p] = false;
      if (!ready_[p].empty()) best.push(candidate(p));
    }
    to_look_at_.clear();
    while (!best.empty()) {
      const Index i = best.top().send;
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
      if (!ready_[p].empty()) best.push(candidate(p));
    }
  }

  Candidate candidate(Index p) const {
    const Index i = ready_[p].top();
    return {later_.priority[i] + load_weight_ * (load_weight_ > 0 ? pressing(i) : 0), i};
  }

  // How long the two links of a send's path that have the most to carry yet will take for it.
  double pressing(Index i) const {
    double most = 0, next = 0;
    for (int l : path(i).links) {
      const double load = to_carry_[static_cast<Index>(l)];
      next = std::max(next, std::min(most, load));
      most = std::max(most, load);
    }
    return most + next;
  }

  void carry(Index i, double sign) {
    const auto& links = path(i).links;
    for (Index k = 0; k < links.size(); ++k)
      to_carry_[static_cast<Index>(links[k])] += sign * timings_[i]->occupancy[k];
  }

  void start(Index i, double now) {
    const auto& links = path(i).links;
    for (Index k = 0; k < links.size(); ++k)
      free_from_[static_cast<Index>(links[k])] = now + timings_[i]->offset[k] + timings_[i]->occupancy[k];
    carry(i, -1);
    sends_[i].start_us = now;
    sends_[i].arrival_us = now + timings_[i]->arrival;
    wakeups_.push({sends_[i].arrival_us, true, events_.arrival[i]});
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
  Events events_;
  std::vector<bool> happened_;                     // per event
  double load_weight_;
  std::vector<double> to_carry_;                   // per link: the time that what has not started yet takes on it
  std::map<std::pair<int, double>, PathTiming> known_;
  std::vector<const PathTiming*> timings_;         // per send
  std::priority_queue<Wakeup, std::vector<Wakeup>, std::greater<Wakeup>> wakeups_;
  std::vector<Index> order_;                       // sends as they started
};

}  // namespace

void dispatch(const Network& network, const std::vector<DemandedChunk>& chunks, std::vector<ChunkSend>& sends,
              const std::vector<double>& priority) {
  if (priority.size() != sends.size()) throw std::invalid_argument("every send needs a priority");
  Dispatch(network, chunks, sends, priority, first_arrivals(network, chunks, sends)).run();
}

void dispatch_longest_first(const Network& network, const std::vector<DemandedChunk>& chunks,
                            std::vector<ChunkSend>& sends, double load_weight, double noise, std::uint64_t seed) {
  Events events = told_by_times(network, chunks, sends);
  const PathTimings timings(network, chunks, sends);
  std::vector<double> urgency(sends.size());
  for (Index i = sends.size(); i-- > 0;) {
    for (Index next : events.allow[i]) urgency[i] = std::max(urgency[i], urgency[next]);
    urgency[i] += timings.of(i).arrival;
  }
  std::vector<double> begin(chunks.size(), std::numeric_limits<double>::infinity());
  for (const auto& send : sends) {
    auto& first = begin[static_cast<Index>(send.chunk)];
    first = std::min(first, send.start_us);
  }
  std::mt19937_64 random(seed);
  for (Index i = 0; i < sends.size(); ++i)
    urgency[i] += noise * timings.of(i).arrival * static_cast<double>(random() >> 11) * 0x1.0p-53 -
                  begin[static_cast<Index>(sends[i].chunk)];
  Dispatch(network, chunks, sends, urgency, std::move(events), load_weight).run();
}

}  // namespace teccl
