#include "lending.hpp"

#include <algorithm>
#include <unordered_map>

namespace teccl {
namespace {

struct Place {
  std::int32_t tb;
  std::int64_t step;
};
using Writers = std::unordered_map<const std::byte*, std::vector<Place>>;  // by where a chunk begins: i and o may alias

class Chunks {
 public:
  Chunks(const Setting& setting, const Memory& memory)
      : memory_(memory),
        bytes_(static_cast<std::size_t>(setting.cut.chunk_elements) * setting.cut.element_bytes) {}
  const std::byte* begin(Buffer buffer, std::int64_t chunk) const {
    return memory_.begin[static_cast<std::size_t>(buffer)] + static_cast<std::size_t>(chunk) * bytes_;
  }

 private:
  const Memory& memory_;
  std::size_t bytes_;
};

Writers writers_of(const Gpu& gpu, const Chunks& chunks) {
  Writers writers;
  for (std::size_t tb = 0; tb < gpu.threadblocks.size(); ++tb) {
    const auto& steps = gpu.threadblocks[tb].steps;
    for (std::size_t s = 0; s < steps.size(); ++s) {
      if (!op_traits(steps[s].op).writes_dst) continue;
      for (std::int64_t k = 0; k < steps[s].count; ++k)
        writers[chunks.begin(steps[s].dst_buffer, steps[s].dst_offset + k)].push_back(
            {static_cast<std::int32_t>(tb), static_cast<std::int64_t>(s)});
    }
  }
  return writers;
}

}  // namespace

StepFlags lending_steps(const Setting& setting, int rank, const Memory& memory) {
  if (setting.injection.any() || setting.scale) return {};
  const Gpu& gpu = setting.program->gpus[static_cast<std::size_t>(rank)];
  const Chunks chunks(setting, memory);
  const Writers writers = writers_of(gpu, chunks);
  StepFlags lends;
  for (std::size_t tb = 0; tb < gpu.threadblocks.size(); ++tb) {
    const auto& steps = gpu.threadblocks[tb].steps;
    lends.emplace_back(steps.size(), false);
    std::vector<std::int64_t> done_of(gpu.threadblocks.size(), -1);  // the last step of each that has been waited for
    for (std::size_t s = 0; s < steps.size(); ++s) {
      const Step& step = steps[s];
      if (step.dep_tb >= 0) {
        auto& done = done_of[static_cast<std::size_t>(step.dep_tb)];
        done = std::max<std::int64_t>(done, step.dep_step);
      }
      done_of[tb] = static_cast<std::int64_t>(s);
      const bool from_destination = step.op == Op::recv_copy_send || step.op == Op::recv_reduce_copy_send;
      if (step.op != Op::send && !from_destination) continue;
      const Buffer buffer = from_destination ? step.dst_buffer : step.src_buffer;
      const std::int64_t offset = from_destination ? step.dst_offset : step.src_offset;
      const auto settled = [&](std::int64_t k) {
        const auto found = writers.find(chunks.begin(buffer, offset + k));
        return found == writers.end() || std::all_of(found->second.begin(), found->second.end(), [&](const Place& w) {
                 return w.step <= done_of[static_cast<std::size_t>(w.tb)];
               });
      };
      bool stays = true;
      for (std::int64_t k = 0; stays && k < step.count; ++k) stays = settled(k);
      lends[tb][s] = stays;
    }
  }
  return lends;
}

}  // namespace teccl
