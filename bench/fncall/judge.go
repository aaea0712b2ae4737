package main

import (
	"context"
	"fmt"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/bench/measure"
	"github.com/opendsec/dsec/internal/testkit"
)

// judge judges submissions of ten cases each and compares the verdicts with those that the corpus knows.
func (b *bench) judge(ctx context.Context) error {
	subs, want := testkit.Submissions(b.o.submissions)
	wrong, cases := 0, 0
	kinds := map[string]int{}
	start := time.Now()
	err := b.c.JudgeBatch(ctx, subs, func(n int, r *dsecv1.JudgeResult, err error) {
		if err == nil {
			err = want[n].Check(r)
		}
		if err != nil {
			wrong++
			fmt.Printf("submission %d (%s): %v\n", n, want[n].Name, err)
		}
		kinds[r.GetVerdict().String()]++
		cases += len(r.GetCases())
	})
	if err != nil {
		return err
	}
	took := time.Since(start)
	row := measure.FromValues("fncall_judge", "s", []float64{took.Seconds()}, wrong)
	row.Note = fmt.Sprintf("%d submissions, %d cases run, %d verdicts wrong", len(subs), cases, wrong)
	b.rows = append(b.rows, row, measure.FromValues("fncall_judge_rate", "cases/s", []float64{float64(cases) / took.Seconds()}, wrong))
	fmt.Println(kinds)
	return nil
}
