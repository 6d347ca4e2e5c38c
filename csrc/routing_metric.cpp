#include <algorithm>
#include <functional>
#include <limits>
#include <queue>

#include "routing.hpp"

namespace teccl::routing {
namespace {

using Index = std::size_t;
constexpr double kNever = std::numeric_limits<double>::infinity();

// Calls `visit` with every link of a flow. A flow that is not placed has only its host links.
template <class Visit>
void each_link(const Traffic& traffic, const Routes& routes, Index f, Visit visit) {
  const Flow& flow = traffic.flows[f];
  visit(traffic.fabric.host_up(flow.src));
  if (routes[f] != kNone) {
    visit(traffic.fabric.up(traffic.from(f), routes[f]));
    visit(traffic.fabric.down(routes[f], traffic.to(f)));
  }
  visit(traffic.fabric.host_down(flow.dst));
}

// Which flows cross each link, as ranges of one array.
struct Crossings {
  std::vector<int> begin, flows;

  Crossings(const Traffic& traffic, const Routes& routes) {
    begin.assign(static_cast<Index>(traffic.fabric.links()) + 1, 0);
    for (Index f = 0; f < traffic.flows.size(); ++f)
      each_link(traffic, routes, f, [&](int link) { ++begin[static_cast<Index>(link) + 1]; });
    for (Index l = 1; l < begin.size(); ++l) begin[l] += begin[l - 1];
    flows.resize(static_cast<Index>(begin.back()));
    std::vector<int> next(begin.begin(), begin.end() - 1);
    for (Index f = 0; f < traffic.flows.size(); ++f)
      each_link(traffic, routes, f,
                [&](int link) { flows[static_cast<Index>(next[static_cast<Index>(link)]++)] = static_cast<int>(f); });
  }
};

// Progressive filling: all groups' rates grow together; a group stops when a link of its flows is full. A group's rate
// x makes each flow f of it run at amount[f]·x. A link's level only rises as groups stop, so a heap of levels that may
// be stale is enough.
std::vector<double> fill(const Traffic& traffic, const Routes& routes, const std::vector<int>& group_of, int groups,
                         const std::vector<double>& amount, std::vector<int>& bottlenecks) {
  const Crossings crossings(traffic, routes);
  const auto links = static_cast<Index>(traffic.fabric.links());
  std::vector<double> left(traffic.fabric.capacity), growing(links, 0), rate(static_cast<Index>(groups), kNever);
  std::vector<int> moving(links, 0);  // flows of groups that have not stopped
  std::vector<int> begin(static_cast<Index>(groups) + 1, 0), member(traffic.flows.size());
  for (Index f = 0; f < traffic.flows.size(); ++f) {
    ++begin[static_cast<Index>(group_of[f]) + 1];
    each_link(traffic, routes, f, [&](int link) {
      growing[static_cast<Index>(link)] += amount[f];
      ++moving[static_cast<Index>(link)];
    });
  }
  for (Index g = 1; g < begin.size(); ++g) begin[g] += begin[g - 1];
  std::vector<int> next(begin.begin(), begin.end() - 1);
  for (Index f = 0; f < traffic.flows.size(); ++f)
    member[static_cast<Index>(next[static_cast<Index>(group_of[f])]++)] = static_cast<int>(f);

  using Level = std::pair<double, int>;
  std::vector<Level> levels;
  for (Index l = 0; l < links; ++l)
    if (moving[l]) levels.emplace_back(left[l] / growing[l], static_cast<int>(l));
  std::priority_queue<Level, std::vector<Level>, std::greater<>> queue(std::greater<>{}, std::move(levels));
  double water = 0;  // rounding must not let a later level sink below an earlier one
  while (!queue.empty()) {
    const auto [level, link] = queue.top();
    queue.pop();
    const auto l = static_cast<Index>(link);
    if (!moving[l]) continue;
    const double now = std::max(0.0, left[l]) / growing[l];
    if (now > level) {
      queue.emplace(now, link);
      continue;
    }
    water = std::max(water, now);
    bottlenecks.push_back(link);
    for (int c = crossings.begin[l]; c < crossings.begin[l + 1]; ++c) {
      const auto group = static_cast<Index>(group_of[static_cast<Index>(crossings.flows[static_cast<Index>(c)])]);
      if (rate[group] != kNever) continue;
      rate[group] = water;
      for (int m = begin[group]; m < begin[group + 1]; ++m) {
        const auto f = static_cast<Index>(member[static_cast<Index>(m)]);
        each_link(traffic, routes, f, [&](int crossed) {
          const auto e = static_cast<Index>(crossed);
          left[e] -= amount[f] * water;
          growing[e] -= amount[f];
          --moving[e];
        });
      }
    }
  }
  return rate;
}

Rates two_layer(const Traffic& traffic, const Routes& routes) {
  Rates result;
  std::vector<int> collective;
  std::vector<double> weight;
  for (const Flow& flow : traffic.flows) {
    collective.push_back(flow.collective);
    weight.push_back(flow.weight);
  }
  result.collective = fill(traffic, routes, collective, traffic.collectives, weight, result.bottlenecks);
  for (const Flow& flow : traffic.flows)
    result.flow.push_back(flow.weight * result.collective[static_cast<Index>(flow.collective)]);
  return result;
}

Rates per_flow(const Traffic& traffic, const Routes& routes) {
  Rates result;
  std::vector<int> own(traffic.flows.size());
  for (Index f = 0; f < own.size(); ++f) own[f] = static_cast<int>(f);
  const std::vector<double> one(own.size(), 1.0);
  result.flow = fill(traffic, routes, own, static_cast<int>(own.size()), one, result.bottlenecks);
  result.collective.assign(static_cast<Index>(traffic.collectives), kNever);
  for (Index f = 0; f < own.size(); ++f) {
    double& rate = result.collective[static_cast<Index>(traffic.flows[f].collective)];
    rate = std::min(rate, result.flow[f] / traffic.flows[f].weight);
  }
  return result;
}

Rates static_share(const Traffic& traffic, const Routes& routes) {
  Rates result;
  std::vector<double> load(static_cast<Index>(traffic.fabric.links()), 0);
  for (Index f = 0; f < traffic.flows.size(); ++f)
    each_link(traffic, routes, f, [&](int link) { load[static_cast<Index>(link)] += traffic.flows[f].weight; });
  for (Index l = 0; l < load.size(); ++l)
    if (load[l] > 0) load[l] /= traffic.fabric.capacity[l];
  const auto collectives = static_cast<Index>(traffic.collectives);
  std::vector<double> most(collectives, 0);
  std::vector<int> worst(collectives, kNone);
  for (Index f = 0; f < traffic.flows.size(); ++f)
    each_link(traffic, routes, f, [&](int link) {
      const auto j = static_cast<Index>(traffic.flows[f].collective);
      if (load[static_cast<Index>(link)] <= most[j]) return;
      most[j] = load[static_cast<Index>(link)];
      worst[j] = link;
    });
  for (double longest : most) result.collective.push_back(longest > 0 ? 1 / longest : kNever);
  for (const Flow& flow : traffic.flows)
    result.flow.push_back(flow.weight * result.collective[static_cast<Index>(flow.collective)]);
  for (int link : worst)
    if (link != kNone) result.bottlenecks.push_back(link);
  std::stable_sort(result.bottlenecks.begin(), result.bottlenecks.end(),
                   [&](int a, int b) { return load[static_cast<Index>(a)] > load[static_cast<Index>(b)]; });
  return result;
}

}  // namespace

Rates rates(const Traffic& traffic, const Routes& routes, Mode mode) {
  switch (mode) {
    case Mode::kCollective: return two_layer(traffic, routes);
    case Mode::kFlow: return per_flow(traffic, routes);
    default: return static_share(traffic, routes);
  }
}

Rates rates_of_active(const Traffic& traffic, const Routes& routes, Mode mode, const std::vector<bool>& active) {
  Traffic running{traffic.fabric, {}, traffic.collectives};
  Routes taken;
  for (Index f = 0; f < routes.size(); ++f)
    if (active[f]) {
      running.flows.push_back(traffic.flows[f]);
      taken.push_back(routes[f]);
    }
  Rates found = rates(running, taken, mode);
  std::vector<double> flow(routes.size(), kNever);
  for (Index f = 0, i = 0; f < routes.size(); ++f)
    if (active[f]) flow[f] = found.flow[i++];
  found.flow = std::move(flow);
  return found;
}

Rates non_blocking(const Traffic& traffic, Mode mode) {
  return rates(traffic, Routes(traffic.flows.size(), kNone), mode);
}

}  // namespace teccl::routing
