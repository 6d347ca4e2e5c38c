// The checker: an oracle for programs that shares nothing with whatever made them but the Program itself.
//
// It proves, in this order, each on top of the ones before it:
//   connections   every (rank, peer, channel, direction) has one threadblock, and the peer the mirror of it
//   matching      the k-th send and the k-th receive of a connection exist and move the same number of chunks
//   bounds        counts are legal, buffers have the collective's sizes, and every range lies inside its buffer
//   dependencies  every wait names a step whose flag is raised, and no numbering is lost to nops or fusion
//   progress      every threadblock finishes when each connection holds few transfers
//   data          executed on symbols, each mode that the file claims ends in the collective's postcondition
//   races         conflicting accesses of a rank's threadblocks are ordered, in each mode, aliasing included
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "check_findings.hpp"
#include "program.hpp"

namespace teccl {

struct CheckOptions {
  std::int64_t credits;            // transfers in flight per connection, by the program's protocol
  std::int64_t max_count;          // chunks a step may move
  std::int32_t max_dependency_tb;  // highest threadblock that a dependency can name
  std::size_t listed;              // findings of one code that are listed before they are only counted
  int root;                        // −1: infer it from the data flow
};

struct ProofState {
  std::string name;
  std::string outcome;  // "proved", "failed", "not attempted", or "no postcondition": only uninitialised reads
};

struct CheckReport {
  std::vector<Finding> findings;
  std::vector<ProofState> proofs;
  std::vector<Finding> handovers;           // see check_races(): only some targets mind them
  std::optional<std::int64_t> min_credits;  // the fewest that finish; nothing: hangs, or not attempted
  int root;                                 // −1: none, or unknown
};

// Peers must lie in [−1, ranks), channels and chunk counts in 32 bits. Linear in steps × chunks moved, but for
// ordering that leads through other ranks, which costs (steps of the program) × (threadblocks of the rank).
CheckReport check_program(const Program& program, const CheckOptions& options);

}  // namespace teccl
