#include <algorithm>
#include <stdexcept>
#include <tuple>

#include "routing.hpp"

namespace teccl::routing {
namespace {

using Index = std::size_t;

// What leaves or enters one ToR, in the order in which it is placed.
struct Group {
  int side, tor;  // side 0: out, 1: in
  std::vector<int> flows;
};

std::vector<Group> groups_largest_first(const Traffic& traffic) {
  const auto tors = static_cast<Index>(traffic.fabric.tors);
  std::vector<Group> groups;
  for (int side = 0; side < 2; ++side)
    for (Index tor = 0; tor < tors; ++tor) groups.push_back({side, static_cast<int>(tor), {}});
  std::vector<int> order;
  for (Index f = 0; f < traffic.flows.size(); ++f)
    if (traffic.crosses(f)) order.push_back(static_cast<int>(f));
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return traffic.flows[static_cast<Index>(a)].collective < traffic.flows[static_cast<Index>(b)].collective;
  });
  for (int f : order) {
    groups[static_cast<Index>(traffic.from(static_cast<Index>(f)))].flows.push_back(f);
    groups[tors + static_cast<Index>(traffic.to(static_cast<Index>(f)))].flows.push_back(f);
  }
  std::stable_sort(groups.begin(), groups.end(),
                   [](const Group& a, const Group& b) { return a.flows.size() > b.flows.size(); });
  return groups;
}

}  // namespace

Routes greedy(const Traffic& traffic, Routes placed) {
  const Clos& fabric = traffic.fabric;
  std::vector<double> load(static_cast<Index>(fabric.fabric_links()), 0);
  auto put = [&](int f, int spine) {
    const auto flow = static_cast<Index>(f);
    placed[flow] = spine;
    load[static_cast<Index>(fabric.up(traffic.from(flow), spine))] += traffic.flows[flow].weight;
    load[static_cast<Index>(fabric.down(spine, traffic.to(flow)))] += traffic.flows[flow].weight;
  };
  for (Index f = 0; f < placed.size(); ++f)
    if (placed[f] != kNone) put(static_cast<int>(f), placed[f]);

  for (const Group& group : groups_largest_first(traffic))
    for (int f : group.flows) {
      const auto flow = static_cast<Index>(f);
      if (placed[flow] != kNone) continue;
      const double weight = traffic.flows[flow].weight;
      std::tuple<double, double, int> best{0, 0, kNone};
      for (int s = 0; s < fabric.spines; ++s) {
        if (!traffic.may_use(flow, s)) continue;
        const int up = fabric.up(traffic.from(flow), s), down = fabric.down(s, traffic.to(flow));
        const double above = load[static_cast<Index>(up)], below = load[static_cast<Index>(down)];
        const std::tuple<double, double, int> choice{
            std::max((above + weight) / fabric.at(up), (below + weight) / fabric.at(down)), above + below, s};
        if (std::get<2>(best) == kNone || choice < best) best = choice;
      }
      if (std::get<2>(best) == kNone) throw std::invalid_argument("a flow has no spine with both hops alive");
      put(f, std::get<2>(best));
    }
  return placed;
}

}  // namespace teccl::routing
