// Edge colouring of the flows' ToR multigraph: König's alternating paths, from nothing or from routes in force, and
// Euler splits.
#include <algorithm>
#include <numeric>

#include "routing.hpp"

namespace teccl::routing {
namespace {

using Index = std::size_t;

// A bipartite multigraph; vertices of both sides count from 0 together.
struct Edge {
  int ends[2];
};

// A proper colouring that grows edge by edge: at every vertex each colour has at most one edge.
class Colouring {
 public:
  Colouring(std::vector<Edge> edges, int vertices, int colours)
      : edges_(std::move(edges)), colours_(colours), colour_(edges_.size(), kNone),
        edge_at_(static_cast<Index>(vertices) * static_cast<Index>(colours), kNone) {}

  void paint(int edge, int colour) {
    colour_[static_cast<Index>(edge)] = colour;
    for (int vertex : edges_[static_cast<Index>(edge)].ends) at(vertex, colour) = edge;
  }

  // König: a colour free at both ends; else a colour free at one, after the alternating path that starts at the other
  // end has swapped it for a colour free there. The graph is bipartite, so the path does not come back.
  void add(int edge) {
    const auto [left, right] = edges_[static_cast<Index>(edge)].ends;
    int at_left = kNone, at_right = kNone;
    for (int c = 0; c < colours_; ++c) {
      const bool left_free = at(left, c) == kNone, right_free = at(right, c) == kNone;
      if (left_free && right_free) return paint(edge, c);
      if (left_free && at_left == kNone) at_left = c;
      if (right_free && at_right == kNone) at_right = c;
    }
    swap_path(right, at_left, at_right);
    paint(edge, at_left);
  }

  const std::vector<int>& colours() const { return colour_; }

 private:
  int& at(int vertex, int colour) {
    return edge_at_[static_cast<Index>(vertex) * static_cast<Index>(colours_) + static_cast<Index>(colour)];
  }

  void swap_path(int vertex, int from, int to) {
    std::vector<int> path;
    for (int colour = from; at(vertex, colour) != kNone; colour = colour == from ? to : from) {
      const int edge = at(vertex, colour);
      const auto [left, right] = edges_[static_cast<Index>(edge)].ends;
      path.push_back(edge);
      vertex = vertex == left ? right : left;
    }
    for (int edge : path)
      for (int end : edges_[static_cast<Index>(edge)].ends) at(end, colour_[static_cast<Index>(edge)]) = kNone;
    for (int edge : path) paint(edge, colour_[static_cast<Index>(edge)] == from ? to : from);
  }

  std::vector<Edge> edges_;
  int colours_;
  std::vector<int> colour_, edge_at_;
};

struct Crossing {
  std::vector<int> flows;   // those that leave their ToR
  std::vector<Edge> edges;  // from ToR u (vertex u) to ToR v (vertex tors + v)
};

Crossing crossing(const Traffic& traffic) {
  Crossing found;
  for (Index f = 0; f < traffic.flows.size(); ++f)
    if (traffic.crosses(f)) {
      found.flows.push_back(static_cast<int>(f));
      found.edges.push_back({{traffic.from(f), traffic.fabric.tors + traffic.to(f)}});
    }
  return found;
}

std::vector<std::vector<int>> edges_of(const std::vector<Edge>& edges, int vertices) {
  std::vector<std::vector<int>> of(static_cast<Index>(vertices));
  for (Index e = 0; e < edges.size(); ++e)
    for (int vertex : edges[e].ends) of[static_cast<Index>(vertex)].push_back(static_cast<int>(e));
  return of;
}

// Forget colours at a vertex of degree d so that those that stay can be part of a balanced colouring: each colour at
// most floor(d/m) times, and one time more for at most d mod m of the colours.
void keep_balanced(const std::vector<int>& edges, int m, std::vector<int>& colour) {
  const int floor = static_cast<int>(edges.size()) / m;
  int extra = static_cast<int>(edges.size()) % m;
  std::vector<int> times(static_cast<Index>(m), 0);
  for (int e : edges) {
    int& c = colour[static_cast<Index>(e)];
    if (c == kNone) continue;
    int& seen = times[static_cast<Index>(c)];
    if (seen < floor || (seen == floor && extra > 0)) {
      extra -= seen == floor;
      ++seen;
    } else {
      c = kNone;
    }
  }
}

// Splits every vertex into full ones of degree m and one for the rest, so that no two edges of a colour meet: the r-th
// edge of a colour goes to the r-th part, edges without a colour to any part that is not full.
std::vector<Edge> split_vertices(const std::vector<std::vector<int>>& edges_of, int m, const std::vector<int>& colour,
                                 int& vertices) {
  std::vector<Edge> parts(colour.size());
  const Index sides = edges_of.size() / 2;
  vertices = 0;
  for (Index v = 0; v < edges_of.size(); ++v) {
    const Index side = v < sides ? 0 : 1;
    const int degree = static_cast<int>(edges_of[v].size()), first = vertices;
    std::vector<int> room;
    for (int rest = degree; rest > 0; rest -= m) room.push_back(std::min(rest, m));
    vertices += static_cast<int>(room.size());
    std::vector<int> times(static_cast<Index>(m), 0);
    for (int e : edges_of[v])
      if (const int c = colour[static_cast<Index>(e)]; c != kNone) {
        const int part = times[static_cast<Index>(c)]++;
        parts[static_cast<Index>(e)].ends[side] = first + part;
        --room[static_cast<Index>(part)];
      }
    Index open = 0;
    for (int e : edges_of[v])
      if (colour[static_cast<Index>(e)] == kNone) {
        while (room[open] == 0) ++open;
        parts[static_cast<Index>(e)].ends[side] = first + static_cast<int>(open);
        --room[open];
      }
  }
  return parts;
}

// Balanced colours by König's paths, keeping the colours that `colour` has where they fit.
void balance(const std::vector<Edge>& edges, int vertices, int m, std::vector<int>& colour) {
  const auto of = edges_of(edges, vertices);
  for (const auto& at_vertex : of) keep_balanced(at_vertex, m, colour);
  int parts = 0;
  const auto split = split_vertices(of, m, colour, parts);
  Colouring colouring(split, parts, m);
  for (Index e = 0; e < colour.size(); ++e)
    if (colour[e] != kNone) colouring.paint(static_cast<int>(e), colour[e]);
  for (Index e = 0; e < colour.size(); ++e)
    if (colour[e] == kNone) colouring.add(static_cast<int>(e));
  colour = colouring.colours();
}

// Halves `chosen` so that every vertex has floor(d/2) or ceil(d/2) of its edges in either half: edges are paired at
// every vertex, which joins them to paths and even cycles, and along those the halves alternate.
void euler_split(const std::vector<Edge>& edges, const std::vector<int>& chosen, int vertices, std::vector<int>& one,
                 std::vector<int>& other) {
  std::vector<int> waiting(static_cast<Index>(vertices), kNone);
  std::vector<Edge> partner(edges.size(), {{kNone, kNone}});
  for (int e : chosen)
    for (Index side = 0; side < 2; ++side) {
      int& open = waiting[static_cast<Index>(edges[static_cast<Index>(e)].ends[side])];
      if (open == kNone) {
        open = e;
      } else {
        partner[static_cast<Index>(e)].ends[side] = open;
        partner[static_cast<Index>(open)].ends[side] = e;
        open = kNone;
      }
    }
  std::vector<bool> taken(edges.size(), false);
  auto walk = [&](int e, Index side) {
    for (bool first = true; e != kNone && !taken[static_cast<Index>(e)]; first = !first, side = 1 - side) {
      taken[static_cast<Index>(e)] = true;
      (first ? one : other).push_back(e);
      e = partner[static_cast<Index>(e)].ends[side];
    }
  };
  for (int e : chosen)  // paths from their ends, then what is left: cycles
    for (Index side = 0; side < 2; ++side)
      if (partner[static_cast<Index>(e)].ends[1 - side] == kNone) walk(e, side);
  for (int e : chosen) walk(e, 0);
}

// Colours `first` … `first` + m − 1 for `chosen`, by log2(m) rounds of Euler splits.
void split_rounds(const std::vector<Edge>& edges, const std::vector<int>& chosen, int vertices, int m, int first,
                  std::vector<int>& colour) {
  if (m == 1) {
    for (int e : chosen) colour[static_cast<Index>(e)] = first;
    return;
  }
  std::vector<int> one, other;
  euler_split(edges, chosen, vertices, one, other);
  split_rounds(edges, one, vertices, m / 2, first, colour);
  split_rounds(edges, other, vertices, m / 2, first + m / 2, colour);
}

}  // namespace

Routes equitable(const Traffic& traffic, const Routes& placed, const std::vector<int>& live) {
  const Crossing graph = crossing(traffic);
  const int vertices = 2 * traffic.fabric.tors, m = static_cast<int>(live.size());
  std::vector<int> number(static_cast<Index>(traffic.fabric.spines), kNone);
  for (Index i = 0; i < live.size(); ++i) number[static_cast<Index>(live[i])] = static_cast<int>(i);
  std::vector<int> colour(graph.flows.size(), kNone);
  bool any = false;
  for (Index e = 0; e < colour.size(); ++e)
    if (const int spine = placed[static_cast<Index>(graph.flows[e])]; spine != kNone) {
      colour[e] = number[static_cast<Index>(spine)];
      any = any || colour[e] != kNone;
    }
  if (m > 0 && !any && (m & (m - 1)) == 0) {
    std::vector<int> all(colour.size());
    std::iota(all.begin(), all.end(), 0);
    split_rounds(graph.edges, all, vertices, m, 0, colour);
  } else if (m > 0) {
    balance(graph.edges, vertices, m, colour);
  }
  Routes routes(traffic.flows.size(), kNone);
  for (Index e = 0; e < colour.size(); ++e)
    routes[static_cast<Index>(graph.flows[e])] = live.at(static_cast<Index>(colour[e]));
  return routes;
}

std::vector<int> edge_colours(const Traffic& traffic) {
  const Crossing graph = crossing(traffic);
  const int vertices = 2 * traffic.fabric.tors;
  Index largest = 0;
  for (const auto& at_vertex : edges_of(graph.edges, vertices)) largest = std::max(largest, at_vertex.size());
  Colouring colouring(graph.edges, vertices, static_cast<int>(largest));
  for (Index e = 0; e < graph.edges.size(); ++e) colouring.add(static_cast<int>(e));
  std::vector<int> colours(traffic.flows.size(), kNone);
  for (Index e = 0; e < graph.flows.size(); ++e)
    colours[static_cast<Index>(graph.flows[e])] = colouring.colours()[e];
  return colours;
}

}  // namespace teccl::routing
