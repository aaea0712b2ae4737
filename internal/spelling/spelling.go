// Package spelling finds what somebody may have meant.
package spelling

// most is how long words are that are compared: messages are for people.
const most = 256

// Distance counts the bytes to change, add or remove from a to b. Words that are too long to be compared are as far as
// they are long.
func Distance(a, b string) int {
	if len(a) > most || len(b) > most {
		return max(len(a), len(b))
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
