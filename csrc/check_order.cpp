#include "check_order.hpp"

#include <algorithm>
#include <stdexcept>
#include <unordered_map>

namespace teccl {
namespace {

constexpr std::size_t max_clock_entries = std::size_t{1} << 27;
constexpr std::size_t max_lanes = 64;

void join(std::int32_t* clock, const std::int32_t* other, std::size_t width) {
  for (std::size_t lane = 0; lane < width; ++lane) clock[lane] = std::max(clock[lane], other[lane]);
}

}  // namespace

LocalOrder::LocalOrder(const Wiring& wiring, int rank, const std::vector<std::int32_t>& steps)
    : wiring_(wiring), first_step_(0), first_tb_(wiring.first_tb[rank]) {
  width_ = static_cast<std::size_t>(wiring.first_tb[rank + 1] - first_tb_);
  first_step_ = wiring.first_step[first_tb_];
  clock_of_.assign(steps.size(), 0);
  std::vector<std::int32_t> current(width_, 0);  // per threadblock: its latest clock
  clocks_.assign(width_, 0);
  for (std::int32_t step : steps) {
    const std::int32_t lane = wiring.tb_of_step[step] - first_tb_;
    const std::int32_t awaited = wiring.waits_for[step];
    if (awaited >= 0) {  // only a wait changes what a threadblock knows
      if (clocks_.size() + width_ > max_clock_entries) throw std::length_error("too many dependencies on one gpu");
      const std::size_t made = clocks_.size();
      clocks_.resize(made + width_);
      std::int32_t* clock = clocks_.data() + made;
      join(clock, clocks_.data() + current[lane] * width_, width_);
      join(clock, clocks_.data() + clock_of_[awaited - first_step_] * width_, width_);
      std::int32_t& known = clock[wiring.tb_of_step[awaited] - first_tb_];
      known = std::max(known, awaited + 1);
      current[lane] = static_cast<std::int32_t>(made / width_);
    }
    clock_of_[step - first_step_] = current[lane];
  }
}

bool LocalOrder::ordered(std::int32_t before, std::int32_t after) const {
  const std::size_t lane = wiring_.tb_of_step[before] - first_tb_;
  return clocks_[clock_of_[after - first_step_] * width_ + lane] > before;
}

std::vector<bool> GlobalOrder::ordered(const std::vector<Pair>& pairs) const {
  std::vector<std::int32_t> blocks;  // whose progress must be known
  for (const Pair& pair : pairs) blocks.push_back(wiring_.tb_of_step[pair.before]);
  std::sort(blocks.begin(), blocks.end());
  blocks.erase(std::unique(blocks.begin(), blocks.end()), blocks.end());

  const std::size_t steps = order_.size();
  const std::size_t lanes =
      std::clamp(max_clock_entries / std::max<std::size_t>(steps, 1), std::size_t{1}, max_lanes);
  std::vector<bool> result(pairs.size(), false);
  std::vector<std::int32_t> lane_of(wiring_.rank_of_tb.size());
  std::vector<std::int32_t> begin, end;  // clocks when each step begins to touch data, and when it has ended
  for (std::size_t first = 0; first < blocks.size(); first += lanes) {
    const std::size_t width = std::min(lanes, blocks.size() - first);
    std::fill(lane_of.begin(), lane_of.end(), -1);
    for (std::size_t lane = 0; lane < width; ++lane) lane_of[blocks[first + lane]] = static_cast<std::int32_t>(lane);
    begin.assign(steps * width, 0);
    end.assign(steps * width, 0);
    for (std::int32_t step : order_) {
      std::int32_t* at_begin = begin.data() + step * width;
      std::int32_t* at_end = end.data() + step * width;
      const std::int32_t tb = wiring_.tb_of_step[step];
      const std::int32_t sender = wiring_.sender_of[step];
      if (step > wiring_.first_step[tb]) join(at_begin, end.data() + (step - 1) * width, width);
      if (wiring_.waits_for[step] >= 0) join(at_begin, end.data() + wiring_.waits_for[step] * width, width);
      if (sender >= 0) {
        const bool one_transfer = wiring_.steps[step]->count == 1;
        join(at_begin, (one_transfer ? end : begin).data() + sender * width, width);
        join(at_end, end.data() + sender * width, width);
      }
      join(at_end, at_begin, width);
      if (lane_of[tb] >= 0) at_end[lane_of[tb]] = step + 1;
    }
    for (std::size_t pair = 0; pair < pairs.size(); ++pair) {
      const std::int32_t lane = lane_of[wiring_.tb_of_step[pairs[pair].before]];
      if (lane >= 0) result[pair] = begin[pairs[pair].after * width + lane] > pairs[pair].before;
    }
  }
  return result;
}

}  // namespace teccl
