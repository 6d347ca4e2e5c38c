// How long a program takes: its threadblocks, dependencies, connections and the links beneath, event by event.
#pragma once

#include <cstdint>
#include <vector>

#include "path.hpp"
#include "program.hpp"

namespace teccl {

// The way that a threadblock's sends go.
struct Route {
  std::vector<std::int32_t> links;  // in order; empty for a threadblock that never sends
  double extra_alpha_us = 0;        // what the protocol adds to a transfer's latency
};

// The machine and the transport as the program's protocol meets them at one size.
struct Transport {
  std::vector<LinkFigures> links;                // with the protocol's efficiency
  std::vector<std::vector<Route>> routes;        // [gpu][threadblock]
  double threadblock_GBps;                       // infinity: unlimited
  std::int64_t credits;                          // transfers in flight per connection
  std::int64_t chunks_per_transfer;
  std::int64_t iterations;                       // how often the runtime loops over the program
  double slice_bytes;                            // of a chunk, in every iteration but the last
  double last_slice_bytes;
  bool timeline = false;                         // whether to tell every activity
};

// The constraint that set the start of an activity, or that a threadblock is blocked by.
enum class Cause : std::int8_t { start, order, dependency, data, credit, link };
const char* cause_name(Cause cause);

// One step, or one transfer of it, on a threadblock. `cause` says why it did not start earlier.
struct Activity {
  std::int32_t gpu, threadblock, step, iteration;
  double start_us, end_us;
  Cause cause;
};

struct ThreadblockUse {
  std::int32_t gpu, threadblock;
  double busy_us;    // moving data; waiting is not busy
  double finish_us;
};

struct Blocked {
  std::int32_t gpu, threadblock, step, iteration;
  Cause cause;
};

struct ProgramTiming {
  double finish_us;
  std::vector<ThreadblockUse> threadblocks;
  std::vector<Activity> critical_path;  // from the start to the last end
  std::vector<Blocked> blocked;         // empty unless the program hangs
  std::vector<Activity> timeline;       // all activities, where asked for
};

// The program must be well formed: peers are ranks, no two threadblocks share a connection's end, and whoever sends
// (receives) has a peer and a route. Dependencies may be wrong: they block.
//
// Rules. A transfer of b bytes, once granted at s, occupies the links of its route as cut_through() says; a waiting
// transfer occupies nothing, and links serve waiting transfers in the order of their requests, passing over one that
// another link still holds up. The sender is busy until the data has left into the first link, a receiver until it
// has arrived, and both for at least b / threadblock_GBps; `cpy` and `re` take twice that. A fused step waits for the
// whole transfer, then passes it on in one pass. The receiver's step returns the credit when it ends, at no delay.
// O(E log E) for E transfers, apart from transfers that wait for several links in turn.
ProgramTiming simulate_program(const Program& program, const Transport& transport);

}  // namespace teccl
