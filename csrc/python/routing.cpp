// Routing for Python: traffic on a Clos fabric as arrays in, spines and rates as arrays out.
#include "routing.hpp"

#include <stdexcept>
#include <string>

#include "module.hpp"

namespace py = pybind11;

namespace teccl {
namespace {

using routing::Traffic;
using Numbers = py::array_t<double, py::array::c_style | py::array::forcecast>;
using Flags = py::array_t<bool, py::array::c_style | py::array::forcecast>;
using Indices = py::array_t<std::int32_t, py::array::c_style | py::array::forcecast>;

Traffic make_traffic(int tors, int spines, int hosts_per_tor, const Numbers& capacity, const Indices& src,
                     const Indices& dst, const Numbers& weight, const Indices& collective, int collectives) {
  Traffic traffic{{tors, spines, hosts_per_tor, {capacity.data(), capacity.data() + capacity.size()}}, {}, collectives};
  if (capacity.size() != traffic.fabric.links()) throw std::invalid_argument("one capacity per link is needed");
  auto s = src.unchecked<1>(), d = dst.unchecked<1>(), c = collective.unchecked<1>();
  auto w = weight.unchecked<1>();
  for (py::ssize_t f = 0; f < s.shape(0); ++f) {
    const bool known = 0 <= s(f) && s(f) < traffic.fabric.hosts() && 0 <= d(f) && d(f) < traffic.fabric.hosts() &&
                       0 <= c(f) && c(f) < collectives && w(f) > 0;
    if (!known) throw std::invalid_argument("flow " + std::to_string(f) + " is not of this fabric");
    traffic.flows.push_back({s(f), d(f), w(f), c(f)});
  }
  return traffic;
}

routing::Routes routes_of(const Traffic& traffic, const Indices& spines) {
  routing::Routes routes(spines.data(), spines.data() + spines.size());
  if (routes.size() != traffic.flows.size()) throw std::invalid_argument("one route per flow is needed");
  for (std::size_t f = 0; f < routes.size(); ++f) {
    if (routes[f] < routing::kNone || routes[f] >= traffic.fabric.spines) throw std::invalid_argument("no such spine");
    if (!traffic.crosses(f)) routes[f] = routing::kNone;
  }
  return routes;
}

routing::Mode mode_of(const std::string& name) {
  if (name == "coll") return routing::Mode::kCollective;
  if (name == "flow") return routing::Mode::kFlow;
  if (name == "static") return routing::Mode::kStatic;
  throw std::invalid_argument("no mode " + name);
}

template <class T>
py::array_t<T> array(const std::vector<T>& values) {
  return py::array_t<T>(static_cast<py::ssize_t>(values.size()), values.data());
}

template <class Work>
auto unlocked(Work work) {
  py::gil_scoped_release release;
  return work();
}

}  // namespace

void bind_routing(py::module_& module) {
  py::class_<Traffic>(module, "Traffic")
      .def(py::init(&make_traffic), py::kw_only(), py::arg("tors"), py::arg("spines"), py::arg("hosts_per_tor"),
           py::arg("capacity"), py::arg("src"), py::arg("dst"), py::arg("weight"), py::arg("collective"),
           py::arg("collectives"))
      .def("rates",
           [](const Traffic& traffic, const Indices& spines, const std::string& mode) {
             const auto routes = routes_of(traffic, spines);
             const auto how = mode_of(mode);
             const auto found = unlocked([&] { return routing::rates(traffic, routes, how); });
             return py::make_tuple(array(found.collective), array(found.flow));
           })
      .def("rates_of_active",
           [](const Traffic& traffic, const Indices& spines, const std::string& mode, const Flags& active) {
             const auto routes = routes_of(traffic, spines);
             const auto how = mode_of(mode);
             if (static_cast<std::size_t>(active.size()) != routes.size())
               throw std::invalid_argument("one flag per flow is needed");
             const std::vector<bool> runs(active.data(), active.data() + active.size());
             const auto found = unlocked([&] { return routing::rates_of_active(traffic, routes, how, runs); });
             return py::make_tuple(array(found.collective), array(found.flow));
           })
      .def("with_capacity",
           [](const Traffic& traffic, const Numbers& capacity) {
             Traffic other = traffic;
             if (capacity.size() != traffic.fabric.links()) throw std::invalid_argument("one capacity per link is needed");
             other.fabric.capacity.assign(capacity.data(), capacity.data() + capacity.size());
             return other;
           })
      .def("alive",
           [](const Traffic& traffic, const Indices& spines) {
             auto routes = routes_of(traffic, spines);
             for (std::size_t f = 0; f < routes.size(); ++f)
               if (routes[f] != routing::kNone && !traffic.may_use(f, routes[f])) routes[f] = routing::kNone;
             return array(routes);
           })
      .def("greedy",
           [](const Traffic& traffic, const Indices& placed) {
             const auto routes = routes_of(traffic, placed);
             return array(unlocked([&] { return routing::greedy(traffic, routes); }));
           })
      .def("equitable",
           [](const Traffic& traffic, const Indices& placed, const std::vector<int>& live) {
             const auto routes = routes_of(traffic, placed);
             return array(unlocked([&] { return routing::equitable(traffic, routes, live); }));
           })
      .def("edge_colours",
           [](const Traffic& traffic) { return array(unlocked([&] { return routing::edge_colours(traffic); })); })
      .def("anneal",
           [](const Traffic& traffic, std::uint64_t seed, int iterations) {
             return array(unlocked([&] { return routing::anneal(traffic, seed, iterations); }));
           })
      .def("polish", [](const Traffic& traffic, const Indices& spines, const std::string& mode, int evaluations,
                        int changes) {
        const auto routes = routes_of(traffic, spines);
        const auto how = mode_of(mode);
        const auto done = unlocked([&] { return routing::polish(traffic, routes, how, evaluations, changes); });
        return py::make_tuple(array(done.routes), done.changes, done.evaluations);
      });
}

}  // namespace teccl
