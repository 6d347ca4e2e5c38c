#include <algorithm>
#include <optional>
#include <unordered_map>

#include "routing.hpp"

namespace teccl::routing {
namespace {

using Index = std::size_t;
constexpr double kSame = 1e-9;  // rates that differ by less than this share are rounding

// What polishing maximises: rates ascending, then fewer collectives that meet on a link.
struct Key {
  std::vector<double> phi;
  int meetings;
};

int compare_phi(const std::vector<double>& a, const std::vector<double>& b) {
  for (Index i = 0; i < a.size(); ++i) {
    if (a[i] > b[i] + kSame * b[i]) return 1;
    if (b[i] > a[i] + kSame * a[i]) return -1;
  }
  return 0;
}

bool better(const Key& a, const Key& b) {
  const int order = compare_phi(a.phi, b.phi);
  return order != 0 ? order > 0 : a.meetings < b.meetings;
}

std::vector<double> sorted(std::vector<double> rates) {
  std::sort(rates.begin(), rates.end());
  return rates;
}

// How many flows of each collective are on each fabric link, and Σ over links of (collectives on it − 1).
class Meetings {
 public:
  Meetings(const Traffic& traffic, const Routes& routes)
      : traffic_(traffic), present_(static_cast<Index>(traffic.fabric.fabric_links()), 0) {
    for (Index f = 0; f < routes.size(); ++f)
      if (routes[f] != kNone) change(f, routes[f], +1);
  }

  void change(Index f, int spine, int by) {
    for (int link : {traffic_.fabric.up(traffic_.from(f), spine), traffic_.fabric.down(spine, traffic_.to(f))}) {
      int& flows = flows_[static_cast<std::int64_t>(link) * traffic_.collectives + traffic_.flows[f].collective];
      int& present = present_[static_cast<Index>(link)];
      flows += by;
      if (by > 0 && flows == 1) total_ += present++ > 0;
      if (by < 0 && flows == 0) total_ -= --present > 0;
    }
  }

  int total() const { return total_; }

 private:
  const Traffic& traffic_;
  std::vector<int> present_;  // collectives on each link
  std::unordered_map<std::int64_t, int> flows_;
  int total_ = 0;
};

// A move of `flow` to `spine`, or a swap where `other` takes the spine that `flow` leaves.
struct Change {
  int flow, other, spine;
};

class Polish {
 public:
  Polish(const Traffic& traffic, const Routes& routes, Mode mode, int evaluations, int changes)
      : traffic_(traffic), mode_(mode), evaluations_(evaluations), changes_(changes), routes_(routes),
        meetings_(traffic, routes), ceiling_(sorted(non_blocking(traffic, mode).collective)),
        reach_(non_blocking(traffic, mode).collective) {
    const auto tors = static_cast<Index>(traffic.fabric.tors);
    leaving_.resize(tors);
    entering_.resize(tors);
    for (Index f = 0; f < routes.size(); ++f)
      if (routes[f] != kNone) {
        leaving_[static_cast<Index>(traffic.from(f))].push_back(static_cast<int>(f));
        entering_[static_cast<Index>(traffic.to(f))].push_back(static_cast<int>(f));
      }
  }

  Polished run() {
    Rates now = rates(traffic_, routes_, mode_);
    Key key{sorted(now.collective), meetings_.total()};
    while (changed_ < changes_) {
      const std::optional<Change> best = best_change(now, key);
      if (!best) break;
      apply(*best);
      changed_ += best->other == kNone ? 1 : 2;
      now = rates(traffic_, routes_, mode_);
      key = {sorted(now.collective), meetings_.total()};
    }
    return {routes_, changed_, evaluated_};
  }

 private:
  // The best of the changes that improve `key`. Only a flow that leaves a bottleneck can raise phi; where none does, any
  // flow can still lessen the meetings.
  std::optional<Change> best_change(const Rates& now, const Key& key) {
    std::optional<Change> best;
    Key best_key = key;
    if (compare_phi(key.phi, ceiling_) < 0) consider(held_back(now), false, best, best_key);
    if (compare_phi(best_key.phi, key.phi) <= 0) consider(all_flows(), true, best, best_key);
    return best;
  }

  void consider(const std::vector<int>& candidates, bool only_fewer_meetings, std::optional<Change>& best,
                Key& best_key) {
    std::vector<bool> tried(routes_.size(), false);
    for (int flow : candidates) {
      tried[static_cast<Index>(flow)] = true;
      for (const Change& change : changes_of(flow, tried)) {
        if (changed_ + (change.other == kNone ? 1 : 2) > changes_) continue;
        if (evaluated_ >= evaluations_) return;
        const Change undo = apply(change);
        const int meetings = meetings_.total();
        if (!only_fewer_meetings || meetings < best_key.meetings) {
          ++evaluated_;
          Key reached{sorted(rates(traffic_, routes_, mode_).collective), meetings};
          if (better(reached, best_key)) {
            best_key = std::move(reached);
            best = change;
          }
        }
        apply(undo);
      }
    }
  }

  std::vector<int> all_flows() const {
    std::vector<int> flows;
    for (Index f = 0; f < routes_.size(); ++f)
      if (routes_[f] != kNone) flows.push_back(static_cast<int>(f));
    return flows;
  }

  // Flows on fabric links that are bottlenecks of a collective slower than a non-blocking fabric lets it be, from the
  // slowest on.
  std::vector<int> held_back(const Rates& now) const {
    const Clos& fabric = traffic_.fabric;
    std::vector<std::vector<int>> on(static_cast<Index>(fabric.fabric_links()));
    for (Index f = 0; f < routes_.size(); ++f)
      if (routes_[f] != kNone) {
        on[static_cast<Index>(fabric.up(traffic_.from(f), routes_[f]))].push_back(static_cast<int>(f));
        on[static_cast<Index>(fabric.down(routes_[f], traffic_.to(f)))].push_back(static_cast<int>(f));
      }
    std::vector<int> flows;
    std::vector<bool> listed(routes_.size(), false);
    for (int link : now.bottlenecks) {
      if (link >= fabric.fabric_links()) continue;
      const auto& here = on[static_cast<Index>(link)];
      const bool slowed = std::any_of(here.begin(), here.end(), [&](int f) {
        const auto j = static_cast<Index>(traffic_.flows[static_cast<Index>(f)].collective);
        return now.collective[j] < reach_[j] * (1 - kSame);
      });
      for (int f : here)
        if (slowed && !listed[static_cast<Index>(f)]) {
          listed[static_cast<Index>(f)] = true;
          flows.push_back(f);
        }
    }
    return flows;
  }

  // Every move of a flow, and its swaps with flows from or to the same ToR that were not tried the other way round.
  std::vector<Change> changes_of(int flow, const std::vector<bool>& tried) const {
    const auto f = static_cast<Index>(flow);
    std::vector<Change> changes;
    for (int s = 0; s < traffic_.fabric.spines; ++s)
      if (s != routes_[f] && traffic_.may_use(f, s)) changes.push_back({flow, kNone, s});
    auto swap_with = [&](int other, bool counted) {
      const auto g = static_cast<Index>(other);
      if (counted || tried[g] || routes_[g] == routes_[f]) return;
      if (traffic_.may_use(f, routes_[g]) && traffic_.may_use(g, routes_[f]))
        changes.push_back({flow, other, routes_[g]});
    };
    for (int g : leaving_[static_cast<Index>(traffic_.from(f))]) swap_with(g, false);
    for (int g : entering_[static_cast<Index>(traffic_.to(f))])
      swap_with(g, traffic_.from(static_cast<Index>(g)) == traffic_.from(f));
    return changes;
  }

  void put(int flow, int spine) {
    const auto f = static_cast<Index>(flow);
    meetings_.change(f, routes_[f], -1);
    meetings_.change(f, spine, +1);
    routes_[f] = spine;
  }

  // Makes a change and returns the one that takes it back.
  Change apply(const Change& change) {
    const int left = routes_[static_cast<Index>(change.flow)];
    put(change.flow, change.spine);
    if (change.other != kNone) put(change.other, left);
    return {change.flow, change.other, left};
  }

  const Traffic& traffic_;
  Mode mode_;
  int evaluations_, changes_;
  int evaluated_ = 0, changed_ = 0;
  Routes routes_;
  Meetings meetings_;
  std::vector<double> ceiling_, reach_;
  std::vector<std::vector<int>> leaving_, entering_;
};

}  // namespace

Polished polish(const Traffic& traffic, const Routes& routes, Mode mode, int evaluations, int changes) {
  return Polish(traffic, routes, mode, evaluations, changes).run();
}

}  // namespace teccl::routing
