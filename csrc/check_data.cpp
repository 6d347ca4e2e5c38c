#include "check_data.hpp"

#include <algorithm>

namespace teccl {

std::int64_t total_cells(const std::vector<Placement>& placements) {
  std::int64_t total = 0;
  for (const Placement& placement : placements) total += placement.cells;
  return total;
}

Execution::Execution(const Wiring& wiring, const Shape& shape, int root, Mode mode, bool every_input_holds)
    : wiring_(wiring),
      shape_(shape),
      root_(root),
      mode_(mode),
      every_input_holds_(every_input_holds),
      sets_(shape.ranks),
      placements_(place_buffers(wiring, shape, root, mode)) {
  for (int rank = 0; rank < shape_.ranks; ++rank) {
    cells_.emplace_back(placements_[rank].cells, nothing);
    for (std::int64_t input = 0; input < placements_[rank].size[0]; ++input) {
      cells_[rank][placements_[rank].cell(Buffer::input, input)] = initial(rank, input);
    }
  }
}

Value Execution::initial(int rank, std::int64_t input) const {
  if (!every_input_holds_ && !shape_.takes_input(rank, root_)) return nothing;
  return {static_cast<std::int32_t>(input), rank};
}

const Value& Execution::cell(int rank, Buffer buffer, std::int64_t offset) const {
  return cells_[rank][placements_[rank].cell(buffer, offset)];
}

void Execution::run(const std::vector<std::int32_t>& order, Findings* findings) {
  for (std::int32_t step : order) execute(step, findings);
}

void Execution::execute(std::int32_t at, Findings* findings) {
  const Step& step = *wiring_.steps[at];
  const OpTraits traits = op_traits(step.op);
  const int rank = wiring_.rank_of_step(at);
  const Placement& placement = placements_[rank];
  if (step.op == Op::nop) return;

  if (findings && traits.reads_src && traits.writes_dst) {
    const std::int64_t apart =
        placement.cell(step.dst_buffer, step.dst_offset) - placement.cell(step.src_buffer, step.src_offset);
    if (apart != 0 && std::abs(apart) < step.count) {
      findings->error("overlap", wiring_.place_of(at),
                      "its source and destination overlap in part, so which is read first is open");
    }
  }

  result_.clear();
  if (traits.receives) {
    auto message = wire_.find(wiring_.sender_of[at]);
    result_ = std::move(message->second);
    wire_.erase(message);
  }
  if (traits.reads_src) {
    read(at, step.src_buffer, step.src_offset, source_, findings);
    if (!traits.receives && !traits.reads_dst) {
      result_ = source_;
    } else {
      if (traits.reads_dst) read(at, step.dst_buffer, step.dst_offset, result_, findings);
      for (std::int64_t k = 0; k < step.count; ++k) result_[k] = reduce(at, k, source_[k], result_[k], findings);
    }
  }
  if (traits.writes_dst) {
    std::copy(result_.begin(), result_.end(),
              cells_[rank].begin() + placement.cell(step.dst_buffer, step.dst_offset));
  }
  if (traits.sends) wire_[at] = result_;
}

void Execution::read(std::int32_t at, Buffer buffer, std::int64_t offset, std::vector<Value>& values,
                     Findings* findings) const {
  const int rank = wiring_.rank_of_step(at);
  const auto first = cells_[rank].begin() + placements_[rank].cell(buffer, offset);
  values.assign(first, first + wiring_.steps[at]->count);
  auto missing = std::find(values.begin(), values.end(), nothing);
  if (missing == values.end()) return;
  if (findings) {
    findings->error(
        "uninitialised", wiring_.place_of(at),
        say("reads ", buffer_name(buffer), "[", offset + (missing - values.begin()), "], which holds nothing yet"));
  }
  std::replace(values.begin(), values.end(), nothing, spoilt);
}

Value Execution::reduce(std::int32_t at, std::int64_t k, Value kept, Value added, Findings* findings) {
  if (kept == spoilt || added == spoilt) return spoilt;
  const bool same_chunk = kept.chunk == added.chunk;
  if (same_chunk && sets_.disjoint(kept.ranks, added.ranks))
    return {kept.chunk, sets_.unite(kept.ranks, added.ranks)};
  const char* code = same_chunk ? "double-reduction" : "mixed-chunks";
  if (findings && findings->lists(code)) {
    const std::int32_t sender = wiring_.sender_of[at];
    const std::string origin = sender < 0 ? "" : say(" from ", wiring_.name_of(sender));
    findings->error(code, wiring_.place_of(at),
                    say("reduces ", describe(kept), " with ", describe(added), origin,
                        same_chunk ? ": a contribution counts twice" : ": different chunks",
                        k > 0 ? say(" (chunk ", k, " of the step)") : ""));
  } else if (findings) {
    findings->error(code, wiring_.place_of(at), "");
  }
  return spoilt;
}

void Execution::check_result(const std::vector<std::int32_t>& order, Findings& findings) const {
  for (int rank = 0; rank < shape_.ranks; ++rank) {
    if (shape_.gives_output(rank, root_)) {
      for (std::int64_t output = 0; output < shape_.outputs(); ++output) {
        const Goal goal = shape_.goal(rank, root_, output);
        const Value wanted{static_cast<std::int32_t>(goal.chunk),
                           goal.rank == Goal::all_ranks ? sets_.all() : goal.rank};
        const Value& found = cell(rank, Buffer::output, output);
        if (found == wanted || found == spoilt) continue;
        if (!findings.lists("output")) {
          findings.error("output", {rank, -1, -1}, "");
          continue;
        }
        Place writer = last_writer(rank, placements_[rank].cell(Buffer::output, output), order);
        writer.gpu = rank;
        findings.error("output", writer,
                       say("o[", output, "] ends with ", describe(found), "; it must be ", describe(wanted)));
      }
    }
    check_kept(rank, order, findings);
  }
}

// Inputs are the caller's, and so is the output buffer of a rank that is given no output.
void Execution::check_kept(int rank, const std::vector<std::int32_t>& order, Findings& findings) const {
  const Placement& placement = placements_[rank];
  const bool output = shape_.gives_output(rank, root_);
  const bool aliased = placement.cell(Buffer::output, 0) < placement.cell(Buffer::input, 0) + placement.size[0] &&
                       placement.cell(Buffer::input, 0) < placement.cell(Buffer::output, 0) + placement.size[1];
  for (std::int64_t input = 0; input < placement.size[0]; ++input) {
    const std::int64_t at = placement.cell(Buffer::input, input);
    const std::int64_t as_output = at - placement.base[1];
    if (output && aliased && as_output >= 0 && as_output < placement.size[1]) continue;
    if (cells_[rank][at] == initial(rank, input)) continue;
    Place writer = findings.lists("input-modified") ? last_writer(rank, at, order) : Place{};
    writer.gpu = rank;
    const std::string text = say("i[", input, "] is overwritten; a collective leaves its input as it was");
    if (aliased && output) {  // an in-place reduce-scatter or scatter: nothing checks the rest of the buffer
      findings.warning("input-overwritten", writer,
                       say("i[", input, "], outside this rank's output, is overwritten"));
    } else {
      findings.error("input-modified", writer, text);
    }
  }
  if (output || aliased) return;
  for (std::int64_t chunk = 0; chunk < placement.size[1]; ++chunk) {
    if (cell(rank, Buffer::output, chunk) == nothing) continue;
    Place writer =
        findings.lists("output-nonroot") ? last_writer(rank, placement.cell(Buffer::output, chunk), order) : Place{};
    writer.gpu = rank;
    findings.error("output-nonroot", writer,
                   say("writes o[", chunk, "], but only the root, gpu ", root_, ", has an output buffer to write"));
  }
}

std::vector<std::int64_t> Execution::root_votes() const {
  std::vector<std::int64_t> votes(shape_.ranks, 0);
  const bool to_one = shape_.collective == Collective::reduce || shape_.collective == Collective::gather;
  for (int rank = 0; rank < shape_.ranks; ++rank) {
    for (std::int64_t output = 0; output < shape_.outputs(); ++output) {
      const Value& found = cell(rank, Buffer::output, output);
      if (found.chunk < 0) continue;
      if (to_one) {
        const Goal goal = shape_.goal(rank, rank, output);
        votes[rank] += goal.chunk == found.chunk && goal.rank != rank &&
                       (goal.rank == Goal::all_ranks ? sets_.all() : goal.rank) == found.ranks;
      } else if (found.ranks < shape_.ranks && found.ranks != rank) {
        votes[found.ranks] += shape_.goal(rank, found.ranks, output).chunk == found.chunk;
      }
    }
  }
  return votes;
}

Place Execution::last_writer(int rank, std::int64_t cell, const std::vector<std::int32_t>& order) const {
  for (auto at = order.rbegin(); at != order.rend(); ++at) {
    const Step& step = *wiring_.steps[*at];
    if (wiring_.rank_of_step(*at) != rank || !op_traits(step.op).writes_dst) continue;
    const std::int64_t first = placements_[rank].cell(step.dst_buffer, step.dst_offset);
    if (first <= cell && cell < first + step.count) return wiring_.place_of(*at);
  }
  return {};
}

std::string Execution::describe(Value value) const {
  if (value == nothing) return "nothing";
  if (value == spoilt) return "what an earlier error spoilt";
  const int count = sets_.size(value.ranks);
  if (count == 1) return say("chunk ", value.chunk, " of gpu ", value.ranks);
  if (value.ranks == sets_.all()) return say("chunk ", value.chunk, " reduced over all gpus");
  constexpr int shown = 8;
  const bool few_are_missing = count > shape_.ranks - count;
  std::string list;
  for (int rank = 0, named = 0; rank < shape_.ranks && named <= shown; ++rank) {
    if (sets_.contains(value.ranks, rank) == few_are_missing) continue;
    list += named == 0 ? "" : ", ";
    list += named == shown ? "…" : std::to_string(rank);
    ++named;
  }
  return say("chunk ", value.chunk, " reduced over ", few_are_missing ? "all gpus but " : "gpus ", list);
}

}  // namespace teccl
