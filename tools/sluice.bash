# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# bash completion for sluice.  Nouns and options are what the installed program itself lists.

_sluice_words()
{
	# Nouns and verbs stand two spaces in; options anywhere in the first column of the list.
	"$@" --help 2>/dev/null | case $# in
	1) sed -n '/(not in this build)/d; s/^  \([a-z][a-z-]*\)  .*/\1/p' ;;
	*) sed -n 's/^  \(-.*\)/\1/p' | sed 's/   .*//' | grep -oE -- '--?[a-zA-Z][a-z-]*' ;;
	esac
}

# The words that may stand after OPTION, where the help says a|b|c.
_sluice_values()
{
	"$1" "$2" --help 2>/dev/null | sed -n "s/^  \(.*, \)\?$3\(, [a-z-]*\)\?[ =]\([a-z]*|[a-z|]*\).*/\3/p" | tr '|' ' '
}

_sluice_verbs()
{
	"$1" "$2" --help 2>/dev/null | sed -n '1s/^.*\[options\] *//p' | sed 's/\[.*//' | grep -oE '\b[a-z]+\b'
}

_sluice()
{
	local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}
	local noun=${COMP_WORDS[1]} values

	COMPREPLY=()
	if [ "$COMP_CWORD" -eq 1 ]; then
		COMPREPLY=($(compgen -W "$(_sluice_words "$1") --help --version" -- "$cur"))
		return
	fi
	case $prev in
	-*)
		values=$(_sluice_values "$1" "$noun" "$prev")
		if [ -n "$values" ]; then
			COMPREPLY=($(compgen -W "$values" -- "$cur"))
			return
		fi
		;;
	esac
	case $cur in
	-*)
		COMPREPLY=($(compgen -W "$(_sluice_words "$1" "$noun")" -- "$cur"))
		;;
	*)
		COMPREPLY=($(compgen -W "$(_sluice_verbs "$1" "$noun")" -- "$cur")
			   $(compgen -f -- "$cur"))
		;;
	esac
}

complete -o filenames -F _sluice sluice
