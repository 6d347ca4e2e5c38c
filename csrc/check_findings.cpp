#include "check_findings.hpp"

#include <algorithm>

namespace teccl {

const char* mode_name(Mode mode) {
  switch (mode) {
    case Mode::out_of_place: return "out of place";
    case Mode::in_place: return "in place";
    case Mode::any: break;
  }
  return "";
}

bool Findings::lists(const std::string& code) const {
  auto found = codes_.find(code);
  return found == codes_.end() || found->second.entries.size() < listed_;
}

void Findings::add(const std::string& code, Place place, const std::string& text, bool error) {
  errors_ += error;
  auto [found, is_new] = codes_.try_emplace(code);
  if (is_new) order_.push_back(code);
  OfCode& of_code = found->second;
  ++of_code.found[mode_];
  for (Entry& entry : of_code.entries) {
    const Finding& other = entry.finding;
    if (other.place.gpu == place.gpu && other.place.tb == place.tb && other.place.step == place.step &&
        other.text == text && entry.mode != mode_) {
      entry.mode = Mode::any;
      return;
    }
  }
  if (of_code.entries.size() < listed_) of_code.entries.push_back({{code, place, text, error}, mode_});
}

std::vector<Finding> Findings::all() const {
  std::vector<Finding> result;
  for (const std::string& code : order_) {
    const OfCode& of_code = codes_.at(code);
    for (const Entry& entry : of_code.entries) {
      result.push_back(entry.finding);
      if (claims_both_modes_ && entry.mode != Mode::any) {
        result.back().text += say(" (", mode_name(entry.mode), " only)");
      }
    }
    std::size_t most = 0;
    for (const auto& [mode, count] : of_code.found) most = std::max(most, count);
    if (most > of_code.entries.size()) {
      const bool error = of_code.entries.empty() || of_code.entries.front().finding.error;
      result.push_back({code, {}, say("and ", most - of_code.entries.size(), " more like these"), error});
    }
  }
  return result;
}

}  // namespace teccl
