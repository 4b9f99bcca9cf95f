// Where a test finds its data and the program. Each test executable has a definition of its own,
// which CMake writes (tests/CMakeLists.txt): no path of this machine is then in what compiles, and
// ccache serves every clone.
#pragma once

namespace jackscrew {

extern const char* const kTestData;  // the directory tests/
extern const char* const kProgram;   // the program `jackscrew`

}  // namespace jackscrew
