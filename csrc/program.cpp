#include "program.hpp"

namespace teccl {

const char* op_name(Op op) {
  static const char* names[] = {"s", "r", "cpy", "re", "rcs", "rrc", "rrs", "rrcs", "nop"};
  return names[static_cast<int>(op)];
}

const char* buffer_name(Buffer b) {
  static const char* names[] = {"i", "o", "s"};
  return names[static_cast<int>(b)];
}

}  // namespace teccl
