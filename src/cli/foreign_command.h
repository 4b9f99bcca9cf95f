// Commands of other programs: what does the same here, or that nothing does.
#pragma once

#include <string_view>

namespace jackscrew {

struct ForeignCommand {
  const char* names;  // separated by spaces
  const char* what;   // a sentence: which command does it, or that it is not supported
  const char* hint;   // what to do instead
};

// nullptr for an unknown name.
const ForeignCommand* foreign_command(std::string_view name);

}  // namespace jackscrew
