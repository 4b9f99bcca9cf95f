// Commands that people try and that this program does not have.
#pragma once

#include <string_view>

namespace jackscrew {

struct NotYet {
  const char* name;  // names, separated by spaces
  const char* what;  // what is missing, as a sentence
  const char* hint;  // what to do instead
};

// nullptr for an unknown name.
const NotYet* not_yet(std::string_view command);

}  // namespace jackscrew
