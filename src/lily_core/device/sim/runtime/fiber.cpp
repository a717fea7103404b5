// sim/runtime/fiber.cpp -- the stack switch for x86-64 and AArch64: the callee-saved registers and the stack pointer.
#include "runtime/fiber.h"

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
asm(R"(
.text
.globl lily_sim_switch
.hidden lily_sim_switch
.type lily_sim_switch,@function
.p2align 4
lily_sim_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  popq %rcx
  jmp *%rcx
.size lily_sim_switch,.-lily_sim_switch
)");
#elif defined(__aarch64__)
asm(R"(
.text
.globl lily_sim_switch
.hidden lily_sim_switch
.type lily_sim_switch,%function
.p2align 4
lily_sim_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size lily_sim_switch,.-lily_sim_switch
)");
#else
#error "the sim device has a fiber switch for x86-64 and AArch64 only"
#endif

namespace lily_sim {

void* make_fiber(void* top, void (*function)()) {
  auto* stack = reinterpret_cast<void**>(reinterpret_cast<std::uintptr_t>(top) & ~std::uintptr_t{63});
#if defined(__x86_64__)
  *--stack = nullptr;  // a return address, so that the stack is aligned as after a call
  *--stack = reinterpret_cast<void*>(function);
  stack -= 6;
  std::memset(stack, 0, 6 * sizeof(void*));
#else
  stack -= 20;
  std::memset(stack, 0, 20 * sizeof(void*));
  stack[11] = reinterpret_cast<void*>(function);  // x30, the address that ret takes
#endif
  return stack;
}

}  // namespace lily_sim
