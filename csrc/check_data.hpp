// Data correctness: the program executed on symbols, one value per chunk.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "check_collective.hpp"

namespace teccl {

// Sets of ranks, each stored once and named by a number; the number of {r} is r.
class RankSets {
 public:
  explicit RankSets(int ranks);
  int all() const { return all_; }
  bool disjoint(int a, int b) const;
  int unite(int a, int b);  // of disjoint sets; throws std::length_error when the sets outgrow memory
  bool contains(int set, int rank) const;
  int size(int set) const;

 private:
  int intern(const std::vector<std::uint64_t>& words);

  int ranks_;
  std::size_t words_;
  int all_ = 0;
  std::vector<std::uint64_t> bits_;  // words_ per set
  std::unordered_multimap<std::uint64_t, int> by_hash_;
  std::unordered_map<std::uint64_t, int> unions_;
};

// One chunk's contents: the reduction of input chunk `chunk` over the ranks of a set.
struct Value {
  std::int32_t chunk;
  std::int32_t ranks;
  bool operator==(const Value& other) const { return chunk == other.chunk && ranks == other.ranks; }
  bool operator!=(const Value& other) const { return !(*this == other); }
};
constexpr Value nothing{-1, -1};  // never written
constexpr Value spoilt{-2, -1};   // made by an error that is already reported

class Execution {
 public:
  // `every_input_holds`: take inputs as given even on ranks where the collective gives none (to find the root).
  Execution(const Wiring& wiring, const Shape& shape, int root, Mode mode, bool every_input_holds);

  // Run the steps in `order`, which respects happens-before. `findings` null: say nothing.
  void run(const std::vector<std::int32_t>& order, Findings* findings);

  // The output chunks against the collective, and what must stay as it was against the start.
  void check_result(const std::vector<std::int32_t>& order, Findings& findings) const;

  // For each rank, how many output chunks are as they would be if it were the root.
  std::vector<std::int64_t> root_votes() const;

 private:
  Value initial(int rank, std::int64_t input) const;
  const Value& cell(int rank, Buffer buffer, std::int64_t offset) const;
  void execute(std::int32_t step, Findings* findings);
  void read(std::int32_t step, Buffer buffer, std::int64_t offset, std::vector<Value>& values,
            Findings* findings) const;
  Value reduce(std::int32_t step, std::int64_t k, Value kept, Value added, Findings* findings);
  void check_kept(int rank, const std::vector<std::int32_t>& order, Findings& findings) const;
  Place last_writer(int rank, std::int64_t cell, const std::vector<std::int32_t>& order) const;
  std::string describe(Value value) const;

  const Wiring& wiring_;
  const Shape& shape_;
  int root_;
  Mode mode_;
  bool every_input_holds_;
  RankSets sets_;
  std::vector<Placement> placements_;
  std::vector<std::vector<Value>> cells_;                      // per rank
  std::unordered_map<std::int32_t, std::vector<Value>> wire_;  // sending step → what it sent, until received
  std::vector<Value> source_, result_;
};

// Cells of all ranks together: what an Execution must hold.
std::int64_t total_cells(const std::vector<Placement>& placements);

}  // namespace teccl
