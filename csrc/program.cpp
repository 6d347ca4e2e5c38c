#include "program.hpp"

namespace teccl {

OpTraits op_traits(Op op) {
  //                                      reads_src reads_dst writes_dst receives sends
  switch (op) {
    case Op::send:                  return {true,  false, false, false, true};
    case Op::recv:                  return {false, false, true,  true,  false};
    case Op::copy:                  return {true,  false, true,  false, false};
    case Op::reduce:                return {true,  true,  true,  false, false};
    case Op::recv_copy_send:        return {false, false, true,  true,  true};
    case Op::recv_reduce_copy:      return {true,  false, true,  true,  false};
    case Op::recv_reduce_send:      return {true,  false, false, true,  true};
    case Op::recv_reduce_copy_send: return {true,  false, true,  true,  true};
    case Op::nop:                   return {false, false, false, false, false};
  }
  return {false, false, false, false, false};
}

const char* op_name(Op op) {
  static const char* names[] = {"s", "r", "cpy", "re", "rcs", "rrc", "rrs", "rrcs", "nop"};
  return names[static_cast<int>(op)];
}

const char* buffer_name(Buffer b) {
  static const char* names[] = {"i", "o", "s"};
  return names[static_cast<int>(b)];
}

}  // namespace teccl
