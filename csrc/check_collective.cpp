#include "check_collective.hpp"

#include <algorithm>

namespace teccl {
namespace {

Collective collective_named(const std::string& name) {
  if (name == "allgather") return Collective::allgather;
  if (name == "reduce_scatter") return Collective::reduce_scatter;
  if (name == "allreduce") return Collective::allreduce;
  if (name == "alltoall") return Collective::alltoall;
  if (name == "broadcast") return Collective::broadcast;
  if (name == "reduce") return Collective::reduce;
  if (name == "gather") return Collective::gather;
  if (name == "scatter") return Collective::scatter;
  return Collective::other;
}

// A rank's share of a gather or scatter, as its declared buffers tell it; 0: they do not.
std::int64_t declared_share(const Program& program, Collective collective) {
  std::int64_t share = 0, whole = 0;
  for (const Gpu& gpu : program.gpus) {
    const bool gathers = collective == Collective::gather;
    share = std::max(share, gathers ? gpu.input_chunks : gpu.output_chunks);
    whole = std::max(whole, gathers ? gpu.output_chunks : gpu.input_chunks);
  }
  return share > 0 ? share : whole / program.ranks();
}

// The runtimes multiply a size by the ranks for allgather, reduce-scatter and alltoall only: for them a gather's
// nchunksperloop divides one rank's share. Files that divide the whole instead are understood, with a warning.
void shape_gather(const Program& program, Shape& shape, Findings& findings) {
  const std::int64_t share = declared_share(program, shape.collective);
  if (share == program.chunks_per_loop || share == 0) {
    shape.share = program.chunks_per_loop;
  } else if (share * shape.ranks == program.chunks_per_loop) {
    shape.share = share;
    findings.warning("chunk-size", {},
                     say("nchunksperloop ", program.chunks_per_loop,
                         " divides the whole buffer, but runtimes count the size of a ", program.collective,
                         " per rank: for them it is ", share));
  } else {
    findings.error("chunks", {},
                   say("nchunksperloop ", program.chunks_per_loop, " fits neither a rank's share, ", share,
                       " chunks, nor ", shape.ranks, " of them"));
  }
  shape.chunks = shape.share * shape.ranks;
}

struct Range {
  Buffer buffer;
  std::int64_t offset;
};

void check_range(const Wiring& wiring, std::int32_t step, const char* does, Range range, Findings& findings) {
  const Gpu& gpu = wiring.program->gpus[wiring.rank_of_step(step)];
  const std::int64_t sizes[] = {gpu.input_chunks, gpu.output_chunks, gpu.scratch_chunks};
  const std::int64_t size = sizes[static_cast<int>(range.buffer)];
  const std::int64_t end = range.offset + wiring.steps[step]->count;
  if (range.offset < 0 || end > size) {
    findings.error("bounds", wiring.place_of(step),
                   say(does, " ", buffer_name(range.buffer), "[", range.offset, ", ", end, ") but ",
                       buffer_name(range.buffer), " has ", size, " chunks"));
  }
}

void check_size(int rank, const char* attribute, std::int64_t declared, std::int64_t needed, Findings& findings) {
  // Loaders skip the check of a buffer declared with no chunks; shipped in-place allgathers have i_chunks=0.
  if (declared != 0 && declared != needed) {
    findings.error("buffer-size", {rank, -1, -1},
                   say(attribute, " is ", declared, "; this collective has ", needed, " there"));
  }
}

}  // namespace

bool Shape::rooted() const {
  return collective == Collective::broadcast || collective == Collective::reduce ||
         collective == Collective::gather || collective == Collective::scatter;
}

std::int64_t Shape::inputs() const {
  return collective == Collective::allgather || collective == Collective::gather ? share : chunks;
}

std::int64_t Shape::outputs() const {
  return collective == Collective::reduce_scatter || collective == Collective::scatter ? share : chunks;
}

bool Shape::gives_output(int rank, int root) const {
  return (collective != Collective::reduce && collective != Collective::gather) || rank == root;
}

bool Shape::takes_input(int rank, int root) const {
  return (collective != Collective::broadcast && collective != Collective::scatter) || rank == root;
}

Goal Shape::goal(int rank, int root, std::int64_t output) const {
  const auto owner = share > 0 ? static_cast<int>(output / share) : 0;
  switch (collective) {
    case Collective::allgather:
    case Collective::gather: return {output % share, owner};
    case Collective::alltoall: return {rank * share + output % share, owner};
    case Collective::reduce_scatter: return {rank * share + output, Goal::all_ranks};
    case Collective::scatter: return {rank * share + output, root};
    case Collective::broadcast: return {output, root};
    case Collective::allreduce:
    case Collective::reduce:
    case Collective::other: break;
  }
  return {output, Goal::all_ranks};
}

Shape shape_of(const Program& program, Findings& findings) {
  Shape shape{collective_named(program.collective), program.ranks(), program.chunks_per_loop, 0};
  switch (shape.collective) {
    case Collective::gather:
    case Collective::scatter: shape_gather(program, shape, findings); break;
    case Collective::allgather:
    case Collective::reduce_scatter:
    case Collective::alltoall:
      shape.share = shape.chunks / shape.ranks;
      if (shape.chunks % shape.ranks != 0) {
        findings.error("chunks", {},
                       say("nchunksperloop ", shape.chunks, " is not a multiple of ngpus ", shape.ranks, ", as a ",
                           program.collective, " needs"));
      }
      break;
    default: break;
  }
  return shape;
}

void check_bounds(const Wiring& wiring, const Shape& shape, const CheckOptions& options, Findings& findings) {
  if (shape.known()) {
    for (int rank = 0; rank < shape.ranks; ++rank) {
      check_size(rank, "i_chunks", wiring.program->gpus[rank].input_chunks, shape.inputs(), findings);
      check_size(rank, "o_chunks", wiring.program->gpus[rank].output_chunks, shape.outputs(), findings);
    }
  }
  for (std::int32_t at = 0; at < wiring.step_count(); ++at) {
    const Step& step = *wiring.steps[at];
    const OpTraits traits = op_traits(step.op);
    if (step.op == Op::nop) continue;
    if (step.count < 1 || step.count > options.max_count) {
      findings.error("count", wiring.place_of(at),
                     say("cnt is ", step.count, "; runtimes take 1 to ", options.max_count));
    }
    if (traits.reads_src) check_range(wiring, at, "reads", {step.src_buffer, step.src_offset}, findings);
    if (traits.writes_dst) check_range(wiring, at, "writes", {step.dst_buffer, step.dst_offset}, findings);
  }
}

std::vector<Placement> place_buffers(const Wiring& wiring, const Shape& shape, int root, Mode mode) {
  std::vector<Placement> placements(shape.ranks, Placement{{0, 0, 0}, {0, 0, 0}, 0});
  for (std::int32_t at = 0; at < wiring.step_count(); ++at) {  // sizes that are used: declared ones may be absurd
    const Step& step = *wiring.steps[at];
    const OpTraits traits = op_traits(step.op);
    auto& size = placements[wiring.rank_of_step(at)].size;
    auto use = [&](Buffer buffer, std::int64_t offset) {
      size[static_cast<int>(buffer)] = std::max(size[static_cast<int>(buffer)], offset + step.count);
    };
    if (traits.reads_src) use(step.src_buffer, step.src_offset);
    if (traits.writes_dst) use(step.dst_buffer, step.dst_offset);
  }

  for (int rank = 0; rank < shape.ranks; ++rank) {
    auto& [base, size, cells] = placements[rank];
    if (shape.known()) {
      size[0] = shape.inputs();
      size[1] = shape.outputs();
    }
    const bool in_place = mode == Mode::in_place;
    const bool output_holds_input =
        shape.collective == Collective::allgather || (shape.collective == Collective::gather && rank == root);
    const bool input_holds_output =
        shape.collective == Collective::reduce_scatter || (shape.collective == Collective::scatter && rank == root);
    const bool split = output_holds_input || input_holds_output || shape.collective == Collective::gather ||
                       shape.collective == Collective::scatter;
    if (in_place && output_holds_input) {
      base = {rank * shape.share, 0, size[1]};
    } else if (in_place && input_holds_output) {
      base = {0, rank * shape.share, size[0]};
    } else if (in_place && !split) {
      base = {0, 0, std::max(size[0], size[1])};
    } else {
      base = {0, size[0], size[0] + size[1]};
    }
    cells = base[2] + size[2];
  }
  return placements;
}

}  // namespace teccl
