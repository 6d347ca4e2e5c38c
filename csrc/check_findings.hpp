// What the checker found, capped per code so that a hopeless file has a readable answer.
#pragma once

#include <cstddef>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace teccl {

struct Place {  // −1: not applicable
  int gpu = -1;
  int tb = -1;
  int step = -1;
};

struct Finding {
  std::string code;
  Place place;
  std::string text;
  bool error;
};

enum class Mode { any, out_of_place, in_place };

const char* mode_name(Mode mode);

class Findings {
 public:
  Findings(std::size_t listed, bool claims_both_modes) : listed_(listed), claims_both_modes_(claims_both_modes) {}

  void error(const std::string& code, Place place, const std::string& text) { add(code, place, text, true); }
  void warning(const std::string& code, Place place, const std::string& text) { add(code, place, text, false); }

  // Findings added from now on hold in this mode; one that holds in both is listed once.
  void in_mode(Mode mode) { mode_ = mode; }

  // Whether another finding of this code would still be listed: dear explanations are made only then.
  bool lists(const std::string& code) const;
  std::size_t errors() const { return errors_; }
  std::vector<Finding> all() const;

 private:
  struct Entry {
    Finding finding;
    Mode mode;
  };
  struct OfCode {
    std::vector<Entry> entries;
    std::map<Mode, std::size_t> found;  // per mode, listed or not
  };

  void add(const std::string& code, Place place, const std::string& text, bool error);

  std::size_t listed_;
  bool claims_both_modes_;
  Mode mode_ = Mode::any;
  std::size_t errors_ = 0;
  std::vector<std::string> order_;  // codes, as first found
  std::map<std::string, OfCode> codes_;
};

// "a", 1, "b" → "a1b".
template <class... Parts>
std::string say(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

}  // namespace teccl
