// The table of A/B experiments, a row each, and the ladder from naive to everything on. Each row
// runs where its technique's bottleneck exists. For tools/lab.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "tools/lab/run.h"

namespace sluice {

struct Experiment {
  const char* name;
  const char* row;         // of docs/techniques.md
  const char* technique;   // what is switched on
  const char* claim;       // as published; S0 to S3 are named in docs/techniques.md
  const char* conditions;  // workload and bottleneck
  const char* off;         // flags of both sides
  const char* on;
  const char* expectation;  // corrected
  Figure figure, beside;    // what the effect is of, and what it costs or also gains
  double least, most;       // expected gain, as a factor
  LabWorkload (*workload)();
  void (*both)(LabSetup&);  // or null
  void (*turn_off)(LabSetup&);
  void (*turn_on)(LabSetup&);
  bool full = false;  // only with --full
  // Not 0: arrivals are not in seconds but in times that a prompt of so many tokens takes alone, so
  // that as many prompts come between as many decodes on any machine.
  int unit_prompt = 0;
};
std::span<const Experiment> experiments();

// One rung of the waterfall: changes what all rungs before it have set up.
struct Rung {
  const char *name, *row;
  void (*apply)(LabSetup&);
};
std::span<const Rung> waterfall_rungs();
LabWorkload waterfall_workload();

// What to make of a gain: "more than expected", "as expected", "less than expected", "worse than
// expected", "no effect" or "contrary".
const char* verdict(double gain, double least, double most);

}  // namespace sluice
