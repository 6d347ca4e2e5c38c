// Routes of flows over a two-layer Clos fabric (arXiv 2503.05324): what they are, and how fast they let the flows run.
#pragma once

#include <cstdint>
#include <vector>

namespace teccl::routing {

// ToRs, spines and hosts joined by directed links: an up link from every ToR to every spine, a down link back, and a
// pair of links for every host. A link of capacity 0 has failed. Host h sits below ToR h / hosts_per_tor.
struct Clos {
  int tors, spines, hosts_per_tor;
  std::vector<double> capacity;  // by link

  int tor_of(int host) const { return host / hosts_per_tor; }
  int hosts() const { return tors * hosts_per_tor; }
  int up(int tor, int spine) const { return tor * spines + spine; }
  int down(int spine, int tor) const { return (tors + tor) * spines + spine; }
  int host_up(int host) const { return 2 * tors * spines + host; }
  int host_down(int host) const { return 2 * tors * spines + hosts() + host; }
  int fabric_links() const { return 2 * tors * spines; }
  int links() const { return fabric_links() + 2 * hosts(); }
  double at(int link) const { return capacity[static_cast<std::size_t>(link)]; }
  bool joins(int from_tor, int spine, int to_tor) const {
    return at(up(from_tor, spine)) > 0 && at(down(spine, to_tor)) > 0;
  }
};

// `collective` counts from 0.
struct Flow {
  int src, dst;
  double weight;
  int collective;
};

struct Traffic {
  Clos fabric;
  std::vector<Flow> flows;
  int collectives;

  int from(std::size_t f) const { return fabric.tor_of(flows[f].src); }
  int to(std::size_t f) const { return fabric.tor_of(flows[f].dst); }
  bool crosses(std::size_t f) const { return from(f) != to(f); }
  bool may_use(std::size_t f, int spine) const { return fabric.joins(from(f), spine, to(f)); }
};

// The spine of every flow; kNone inside a ToR, and where a flow is not placed yet.
using Routes = std::vector<int>;
constexpr int kNone = -1;

enum class Mode { kCollective, kFlow, kStatic };

struct Rates {
  std::vector<double> collective;  // x_j, per unit of weight; infinite for a collective without flows
  std::vector<double> flow;        // of the link rate
  std::vector<int> bottlenecks;    // links that hold some collective back, worst first
};

// The rates of traffic on routes: two-layer max-min, per-flow max-min or the static share. Flows that are not placed
// load their host links only. O((F + L) log L).
Rates rates(const Traffic& traffic, const Routes& routes, Mode mode);

// The same where only some of the flows run; the rates of others are infinite.
Rates rates_of_active(const Traffic& traffic, const Routes& routes, Mode mode, const std::vector<bool>& active);

// The rates on a non-blocking fabric, where only host links limit.
Rates non_blocking(const Traffic& traffic, Mode mode);

// The paper's kind of greedy. Flows that `placed` gives a spine stay there; the others go, ToR by ToR, largest first,
// where the more loaded of their two hops is least loaded. O(F (log F + M)).
Routes greedy(const Traffic& traffic, Routes placed);

// Equitable colouring of a symmetric fabric: over the spines in `live`, every link load is floor(d/m) or ceil(d/m),
// which is optimal. Flows that `placed` gives a spine stay there where balance allows it. From nothing and m = 2^k: k
// Euler splits, O(F log m); else König's alternating paths, O(F (m + V)).
Routes equitable(const Traffic& traffic, const Routes& placed, const std::vector<int>& live);

// A proper colouring of the flows' ToR multigraph in as many colours as its largest degree; kNone inside a ToR.
std::vector<int> edge_colours(const Traffic& traffic);

// Simulated annealing as Hedera does it: one spine per destination host, swapped between destinations.
Routes anneal(const Traffic& traffic, std::uint64_t seed, int iterations);

struct Polished {
  Routes routes;
  int changes, evaluations;
};

// Best-improvement moves and swaps on the key (phi, -sum over fabric links of (collectives on it - 1)), with at most
// `evaluations` of the metric and `changes` changed flows.
Polished polish(const Traffic& traffic, const Routes& routes, Mode mode, int evaluations, int changes);

}  // namespace teccl::routing
