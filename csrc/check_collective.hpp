// What each collective starts from and must end with, and where its buffers lie (MSCCL XML reference §5, §7).
//
// Chunk k of rank r's input is the contribution (k, {r}); a reduction of the same chunk over several ranks is
// (k, {r, q, …}). Every collective's postcondition is one contribution per output chunk.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "check_wiring.hpp"

namespace teccl {

enum class Collective { allgather, reduce_scatter, allreduce, alltoall, broadcast, reduce, gather, scatter, other };

struct Goal {
  std::int64_t chunk;
  int rank;  // whose input chunk; all_ranks: the reduction over all
  static constexpr int all_ranks = -1;
};

struct Shape {
  Collective collective;
  int ranks;
  std::int64_t chunks;  // of the whole: nchunksperloop, but for gather and scatter (see shape_of)
  std::int64_t share;   // chunks of one rank, where the whole is split among the ranks

  bool known() const { return collective != Collective::other; }
  bool rooted() const;
  std::int64_t inputs() const;                  // chunks of every rank's input buffer
  std::int64_t outputs() const;                 // chunks of every rank's output buffer
  bool gives_output(int rank, int root) const;  // whether the collective defines this rank's output
  bool takes_input(int rank, int root) const;   // whether this rank's input holds anything
  Goal goal(int rank, int root, std::int64_t output) const;
};

// The shape that the program's collective and nchunksperloop give, or an error when they cannot.
Shape shape_of(const Program& program, Findings& findings);

// The buffers' declared sizes against the shape, and every step's ranges against the buffers.
void check_bounds(const Wiring& wiring, const Shape& shape, const CheckOptions& options, Findings& findings);

// One rank's buffers as one row of cells; in place, some input and output chunks are the same cell.
struct Placement {
  std::array<std::int64_t, 3> base;  // cell of chunk 0 of the input, output and scratch buffer
  std::array<std::int64_t, 3> size;  // chunks of each that matter
  std::int64_t cells;

  std::int64_t cell(Buffer buffer, std::int64_t offset) const { return base[static_cast<int>(buffer)] + offset; }
};

// For every rank. `root` −1: unknown, so nothing that only a root aliases is aliased.
std::vector<Placement> place_buffers(const Wiring& wiring, const Shape& shape, int root, Mode mode);

}  // namespace teccl
