// The functions of control.cc that the doubles call.
#pragma once

#include <string>

#include "tests/double/control.h"

namespace fake {

// Counts a call. Returns the code of a planned failure, or 0.
int Enter(const char* function);

void Fault(const std::string& text);
void Warn(const std::string& text);
long Setting(const char* name);
void SleepMicroseconds(long microseconds);

}  // namespace fake

#define FAKE_ENTER() \
  if (const int planned = fake::Enter(__func__)) return planned
