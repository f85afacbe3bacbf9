// The double's own side of control.h.
#pragma once

#include <string>

#include "tests/double/control.h"

namespace fake {

// Counts the call; the code to return instead of doing anything, or 0.
int Enter(const char* function);

void Fault(const std::string& what);
void Warn(const std::string& what);
long Setting(const char* name);
void SleepMicroseconds(long microseconds);

}  // namespace fake

#define FAKE_ENTER() \
  if (const int planned = fake::Enter(__func__)) return planned
