// sim/runtime/fiber.h -- switching between the stacks of fibers.
#pragma once

namespace lily_sim {

// Saves the running context, whose stack pointer goes to *save, and continues the one that was saved as `target`.
extern "C" void lily_sim_switch(void** save, void* target);

// A context that starts `function`, which must not return, on the stack that ends at `top`.
void* make_fiber(void* top, void (*function)());

}  // namespace lily_sim
