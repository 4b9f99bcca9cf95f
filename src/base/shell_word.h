// Names in commands that a user is told to run.
#pragma once

#include <string>
#include <string_view>

namespace jackscrew {

// `text` as one word of a POSIX shell: as it is, or quoted where a shell would read it otherwise.
// Control characters are written as in $'\n', which bash and zsh understand.
std::string shell_word(std::string_view text);

}  // namespace jackscrew
