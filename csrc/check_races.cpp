#include "check_races.hpp"

#include <algorithm>
#include <stdexcept>
#include <unordered_set>

#include "check_order.hpp"

namespace teccl {
namespace {

constexpr std::size_t max_pairs = std::size_t{1} << 21;

struct Access {
  std::int32_t step;
  Buffer buffer;
  std::int64_t first;  // cell
  std::int64_t end;
  bool writes;
};

// A threadblock reads what another of its rank wrote.
struct Handover {
  std::int32_t writer;
  std::int32_t reader;
  Buffer buffer;  // by which it is read
};

// Two accesses to a cell that nothing within the rank orders.
struct Conflict {
  std::int32_t before;  // as the execution happened to go
  std::int32_t after;
  bool before_writes;
  bool after_writes;
  std::int64_t cell;
};

std::vector<Access> accesses_of(const Wiring& wiring, std::int32_t at, const Placement& placement) {
  const Step& step = *wiring.steps[at];
  const OpTraits traits = op_traits(step.op);
  if (step.op == Op::copy &&
      placement.cell(step.src_buffer, step.src_offset) == placement.cell(step.dst_buffer, step.dst_offset)) {
    // In place, a chunk is copied onto itself: every reader sees what it held, so this disturbs writers only.
    const std::int64_t first = placement.cell(step.src_buffer, step.src_offset);
    return {{at, step.src_buffer, first, first + step.count, false}};
  }
  std::vector<Access> result;
  auto add = [&](Buffer buffer, std::int64_t offset, bool writes) {
    const std::int64_t first = placement.cell(buffer, offset);
    result.push_back({at, buffer, first, first + step.count, writes});
  };
  if (traits.reads_src) add(step.src_buffer, step.src_offset, false);
  if (traits.reads_dst) add(step.dst_buffer, step.dst_offset, false);
  if (traits.writes_dst) add(step.dst_buffer, step.dst_offset, true);
  return result;
}

// The latest accesses of each cell of one rank. Order is transitive, so it is enough to compare an access with the
// last write and the reads since: if all those are ordered, all conflicting pairs are.
class History {
 public:
  History(const Wiring& wiring, const LocalOrder& order, std::int64_t cells)
      : wiring_(wiring), order_(order), cells_(static_cast<std::size_t>(cells)) {}

  void add(const Access& access) {
    for (std::int64_t at = access.first; at < access.end; ++at) {
      Cell& cell = cells_[at];
      if (cell.writer >= 0) compare(cell.writer, true, access, at);
      if (cell.writer >= 0 && !access.writes) hand_over(cell.writer, access);
      if (access.writes) {
        for (std::int32_t read = cell.reads; read >= 0;) {
          compare(reads_[read].step, false, access, at);
          const std::int32_t next = reads_[read].next;
          reads_[read].next = unused_;
          unused_ = read;
          read = next;
        }
        cell = {access.step, -1};
      } else {
        remember_read(cell, access.step);
      }
    }
  }

  const std::vector<Conflict>& conflicts() const { return conflicts_; }
  const std::vector<Handover>& handovers() const { return handovers_; }

 private:
  struct Cell {
    std::int32_t writer = -1;
    std::int32_t reads = -1;  // a list: the latest of each threadblock since the write
  };
  struct Read {
    std::int32_t step;
    std::int32_t next;
  };

  void remember_read(Cell& cell, std::int32_t step) {
    for (std::int32_t read = cell.reads; read >= 0; read = reads_[read].next) {
      if (wiring_.tb_of_step[reads_[read].step] == wiring_.tb_of_step[step]) {
        reads_[read].step = step;
        return;
      }
    }
    std::int32_t added = unused_;
    if (added < 0) {
      added = static_cast<std::int32_t>(reads_.size());
      reads_.push_back({});
    } else {
      unused_ = reads_[added].next;
    }
    reads_[added] = {step, cell.reads};
    cell.reads = added;
  }

  // One for each step and buffer is enough.
  void hand_over(std::int32_t writer, const Access& access) {
    if (access.buffer == Buffer::output || wiring_.tb_of_step[writer] == wiring_.tb_of_step[access.step]) return;
    if (!handovers_.empty() && handovers_.back().reader == access.step && handovers_.back().buffer == access.buffer)
      return;
    handovers_.push_back({writer, access.step, access.buffer});
  }

  void compare(std::int32_t before, bool before_writes, const Access& access, std::int64_t cell) {
    if (wiring_.tb_of_step[before] == wiring_.tb_of_step[access.step] || order_.ordered(before, access.step)) return;
    const std::uint64_t pair = (static_cast<std::uint64_t>(before) << 32) | static_cast<std::uint32_t>(access.step);
    if (!known_.insert(pair).second) return;
    if (conflicts_.size() >= max_pairs) throw std::length_error("too many accesses that no dependency orders");
    conflicts_.push_back({before, access.step, before_writes, access.writes, cell});
  }

  const Wiring& wiring_;
  const LocalOrder& order_;
  std::vector<Cell> cells_;
  std::vector<Read> reads_;
  std::int32_t unused_ = -1;  // a list of forgotten reads
  std::unordered_set<std::uint64_t> known_;
  std::vector<Conflict> conflicts_;
  std::vector<Handover> handovers_;
};

std::string cell_name(const Wiring& wiring, const Placement& placement, std::int32_t at, bool written,
                      std::int64_t cell) {
  const Step& step = *wiring.steps[at];
  const Buffer buffer = written ? step.dst_buffer : step.src_buffer;
  return say(buffer_name(buffer), "[", cell - placement.base[static_cast<int>(buffer)], "]");
}

void report(const Wiring& wiring, const std::vector<Placement>& placements, const std::vector<Conflict>& conflicts,
            const std::vector<std::int32_t>& order, Findings& findings) {
  if (conflicts.empty()) return;
  std::vector<GlobalOrder::Pair> pairs;
  for (const Conflict& conflict : conflicts) pairs.push_back({conflict.before, conflict.after});
  const std::vector<bool> through_others = GlobalOrder(wiring, order).ordered(pairs);
  for (std::size_t at = 0; at < conflicts.size(); ++at) {
    const Conflict& conflict = conflicts[at];
    const Placement& placement = placements[wiring.rank_of_step(conflict.after)];
    const std::string text =
        say(conflict.after_writes ? "writes " : "reads ",
            cell_name(wiring, placement, conflict.after, conflict.after_writes, conflict.cell), ", which ",
            wiring.name_of(conflict.before), conflict.before_writes ? " writes as " : " reads as ",
            cell_name(wiring, placement, conflict.before, conflict.before_writes, conflict.cell));
    const Place place = wiring.place_of(conflict.after);
    if (through_others[at]) {
      findings.warning("remote-order", place, text + "; only messages through other ranks order the two");
    } else {
      findings.error("race", place, text + "; nothing orders the two: add a dependency");
    }
  }
}

}  // namespace

void check_races(const Wiring& wiring, const Shape& shape, int root, Mode mode,
                 const std::vector<std::int32_t>& order, Findings& findings, Findings& handovers) {
  const std::vector<Placement> placements = place_buffers(wiring, shape, root, mode);
  std::vector<std::vector<std::int32_t>> steps_of(placements.size());
  for (std::int32_t step : order) steps_of[wiring.rank_of_step(step)].push_back(step);

  std::vector<Conflict> conflicts;
  for (int rank = 0; rank < shape.ranks; ++rank) {
    if (steps_of[rank].empty()) continue;
    const LocalOrder local(wiring, rank, steps_of[rank]);
    History history(wiring, local, placements[rank].cells);
    for (std::int32_t step : steps_of[rank]) {
      for (const Access& access : accesses_of(wiring, step, placements[rank])) history.add(access);
    }
    for (const Handover& handover : history.handovers()) {
      const char* name = buffer_name(handover.buffer);
      handovers.error(say("handover-", name), wiring.place_of(handover.reader),
                      say("reads from ", name, " what ", wiring.name_of(handover.writer), " writes"));
    }
    conflicts.insert(conflicts.end(), history.conflicts().begin(), history.conflicts().end());
    if (conflicts.size() > max_pairs) throw std::length_error("too many accesses that no dependency orders");
  }
  report(wiring, placements, conflicts, order, findings);
}

}  // namespace teccl
